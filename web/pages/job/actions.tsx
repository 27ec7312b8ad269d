import { useQueryClient } from '@tanstack/react-query'
import { useNavigate } from '@tanstack/react-router'
import { Ban, CirclePause, CirclePlay, Copy, Ellipsis, Pencil, Plus, Trash2, X } from 'lucide-react'
import { useState } from 'react'
import type { Job } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { isOver } from '../../lib/events.ts'
import { actionsOf, useDeleteJob, useJobAction } from '../../lib/jobs.ts'
import { useMay } from '../../lib/session.ts'
import { EditLabels } from '../../parts/edit-labels.tsx'
import { Button, IconButton, LinkButton } from '../../ui/button.tsx'
import { Input } from '../../ui/field.tsx'
import { ConfirmDialog, Menu } from '../../ui/popups.tsx'
import { toast, toastError } from '../../ui/toast.tsx'

/** What can be done with the job now. */
export function Actions({ job }: { job: Job }) {
  const mayTrain = useMay('tuning:write')
  const [editing, setEditing] = useState(false)
  const [deleting, setDeleting] = useState(false)
  const act = useJobAction()
  const remove = useDeleteJob()
  const navigate = useNavigate()
  if (!mayTrain) return <p className="text-sm text-muted">Your role can view jobs, but not change them.</p>
  const actions = actionsOf(job)
  const doing = act.isPending ? act.variables.action : undefined
  return (
    <>
      <Menu
        trigger={<IconButton label="More actions" variant="secondary" icon={<Ellipsis aria-hidden />} />}
        entries={[
          { label: 'Edit name and notes', icon: <Pencil aria-hidden />, onClick: () => setEditing(true) },
          ...(isOver(job)
            ? [
                null,
                { label: 'Delete job', icon: <Trash2 aria-hidden />, danger: true, onClick: () => setDeleting(true) },
              ]
            : []),
        ]}
      />
      <ConfirmDialog
        open={deleting}
        onOpenChange={setDeleting}
        title={`Delete ${job.name}?`}
        action="Delete job"
        onConfirm={async () => {
          await remove.mutateAsync(job.id)
          await navigate({ to: '/jobs' })
          toast.good('Job deleted', job.name)
        }}
      >
        Its curves, samples and log are deleted. {job.model && 'The model it trained stays, with its origin.'}
      </ConfirmDialog>
      <LinkButton to="/jobs/new" search={{ clone: job.id }} icon={<Copy aria-hidden />}>
        Clone
      </LinkButton>
      {actions.includes('cancel') && (
        <ConfirmDialog
          trigger={<Button icon={<Ban aria-hidden />}>Cancel job</Button>}
          title={`Cancel ${job.name}?`}
          action="Cancel job"
          keep="Keep training"
          onConfirm={() => act.mutateAsync({ id: job.id, action: 'cancel' })}
        >
          The job ends without a model and can't be resumed. Its curves and log stay. To continue later, pause it
          instead.
        </ConfirmDialog>
      )}
      {actions.includes('pause') && (
        <Button
          icon={<CirclePause aria-hidden />}
          busy={doing === 'pause'}
          onClick={() =>
            act.mutate({ id: job.id, action: 'pause' }, { onError: toastError('Could not pause the job') })
          }
        >
          Pause
        </Button>
      )}
      {actions.includes('resume') && (
        <Button
          variant="primary"
          icon={<CirclePlay aria-hidden />}
          busy={doing === 'resume'}
          onClick={() =>
            act.mutate({ id: job.id, action: 'resume' }, { onError: toastError('Could not resume the job') })
          }
        >
          Resume
        </Button>
      )}
      {editing && <Edit job={job} onClose={() => setEditing(false)} />}
    </>
  )
}

const pairsMax = 16

function Edit({ job, onClose }: { job: Job; onClose: () => void }) {
  const [pairs, setPairs] = useState(() => Object.entries(job.metadata).map(([key, value]) => ({ key, value })))
  const client = useQueryClient()
  const save = async (labels: { name: string; description: string }) => {
    const metadata = Object.fromEntries(pairs.filter(({ key }) => key.trim()).map(({ key, value }) => [key, value]))
    client.setQueryData(['jobs', job.id], await tunery.jobs.update(job.id, { ...labels, metadata }))
    await client.invalidateQueries({ queryKey: ['jobs', 'list'] })
  }
  const change = (index: number, next: { key?: string; value?: string }) =>
    setPairs(pairs.map((pair, at) => (at === index ? { ...pair, ...next } : pair)))
  return (
    <EditLabels
      title="Edit job"
      description="The trained model keeps its own name and notes."
      labels={job}
      save={save}
      onClose={onClose}
    >
      <fieldset className="grid gap-2">
        <legend className="mb-1.5 font-medium">
          Metadata <span className="ml-1 text-sm font-normal text-muted">key-value pairs for your own use</span>
        </legend>
        {pairs.map((pair, index) => (
          <div key={index} className="flex items-center gap-2">
            <Input
              aria-label={`Key ${index + 1}`}
              placeholder="key"
              value={pair.key}
              maxLength={64}
              onChange={(event) => change(index, { key: event.target.value })}
            />
            <Input
              aria-label={`Value ${index + 1}`}
              placeholder="value"
              value={pair.value}
              maxLength={512}
              onChange={(event) => change(index, { value: event.target.value })}
            />
            <IconButton
              label={`Remove pair ${index + 1}`}
              icon={<X aria-hidden />}
              onClick={() => setPairs(pairs.filter((_, at) => at !== index))}
            />
          </div>
        ))}
        {pairs.length < pairsMax && (
          <div>
            <Button size="sm" icon={<Plus aria-hidden />} onClick={() => setPairs([...pairs, { key: '', value: '' }])}>
              Add metadata
            </Button>
          </div>
        )}
      </fieldset>
    </EditLabels>
  )
}
