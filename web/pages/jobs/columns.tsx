import { useNavigate } from '@tanstack/react-router'
import { Ban, CirclePause, CirclePlay, Copy, Ellipsis, Trash2 } from 'lucide-react'
import { useState } from 'react'
import type { Job } from '../../../sdk/index.ts'
import { isOver } from '../../lib/events.ts'
import { formatDuration, formatNumber, formatProgress } from '../../lib/format.ts'
import { actionsOf, isReinforcement, lossOf, secondsOf, useDeleteJob, useJobAction, whenText } from '../../lib/jobs.ts'
import { Sparkline } from '../../ui/bars.tsx'
import { IconButton } from '../../ui/button.tsx'
import { Badge, Progress, Status } from '../../ui/feedback.tsx'
import { ConfirmDialog, Menu, type MenuEntry } from '../../ui/popups.tsx'
import type { Column } from '../../ui/table.tsx'
import { toast, toastError } from '../../ui/toast.tsx'
import { RelativeTime } from '../../ui/values.tsx'

export function columnsOf({
  losses,
  mayTrain,
  wide,
  added,
}: {
  losses: ReadonlyMap<string, readonly number[]>
  mayTrain: boolean
  /** Room for every column. */
  wide: boolean
  /** By the reader. */
  added: readonly Column<Job>[]
}): Column<Job>[] {
  return [
    {
      id: 'name',
      header: 'Name',
      grow: true,
      value: ({ name }) => name,
      cell: (job) => (
        <span className="block min-w-0">
          <span className="block truncate">{job.name}</span>
          <span className="block truncate text-sm font-normal text-muted">
            <span className="sm:hidden">{phoneStatus(job)}, </span>
            {methodOf(job)}, {job.model_id}
          </span>
        </span>
      ),
    },
    {
      id: 'status',
      header: 'Status',
      from: 'sm',
      value: ({ status }) => status,
      cell: (job) => (
        <span className="flex gap-1.5">
          <Status status={job.status} />
          {job.paused && job.status !== 'paused' && <Badge tone="warn">pausing</Badge>}
        </span>
      ),
    },
    { id: 'progress', header: 'Progress', from: 'md', cell: (job) => <ProgressCell job={job} /> },
    {
      id: 'loss',
      header: 'Loss',
      align: 'right',
      from: 'sm',
      value: lossOf,
      cell: (job) => {
        const values = losses.get(job.id)
        return (
          <span className="inline-flex items-center gap-3">
            {!isReinforcement(job) && values && values.length > 1 && (
              <Sparkline values={values} label={`Loss of ${job.name}`} className="h-5 w-16 max-[1399px]:hidden" />
            )}
            {formatNumber(lossOf(job), 4)}
          </span>
        )
      },
    },
    ...(wide
      ? [
          {
            id: 'validation',
            header: 'Validation',
            align: 'right' as const,
            value: ({ metrics }: Job) => metrics.validation_loss,
            cell: ({ metrics }: Job) =>
              metrics.validation_reward === undefined
                ? formatNumber(metrics.validation_loss, 4)
                : `reward ${formatNumber(metrics.validation_reward)}`,
          },
          {
            id: 'created',
            header: 'Created',
            align: 'right' as const,
            value: ({ created_at }: Job) => Date.parse(created_at),
            cell: (job: Job) => (
              <>
                <RelativeTime time={job.created_at} />
                {isOver(job) && job.started_at && (
                  <span className="block text-sm text-muted">took {formatDuration(secondsOf(job))}</span>
                )}
              </>
            ),
          },
        ]
      : []),
    ...added,
    ...(mayTrain
      ? [
          {
            id: 'actions',
            header: <span className="sr-only">Actions</span>,
            width: '3rem',
            cell: (job: Job) => <RowMenu job={job} />,
          },
        ]
      : []),
  ]
}

const methodOf = ({ resolved_config: { method, method_options } }: Job) =>
  method_options.objective.value === 'sft' ? method.value : `${method.value}, ${method_options.objective.value}`

/** Where there is no room for columns. */
const phoneStatus = (job: Job): string =>
  [job.status, job.status === 'running' && formatProgress(job.progress), whenText(job)].filter(Boolean).join(', ')

function ProgressCell({ job }: { job: Job }) {
  const percent = formatProgress(job.progress)
  if (job.status === 'queued')
    return (
      <span className="block max-w-48 text-sm whitespace-normal text-muted">
        {job.waits_for ? 'waiting for setup' : whenText(job)}
      </span>
    )
  if (job.status === 'failed')
    return <span className="block max-w-48 truncate text-sm text-bad">{job.error?.message}</span>
  if (isOver(job))
    return <span className="text-sm text-muted">{job.status === 'completed' ? 'done' : `ended at ${percent}`}</span>
  return (
    <div className="grid w-44 gap-1 pt-1.5">
      <Progress value={job.progress} label={`Progress of ${job.name}`} tone={job.paused ? 'warn' : 'accent'} />
      <span className="flex justify-between gap-2 text-xs text-muted">
        <span>{percent}</span>
        <span>{whenText(job)}</span>
      </span>
    </div>
  )
}

const words = {
  pause: { label: 'Pause', icon: <CirclePause aria-hidden />, done: 'Pausing job', failed: 'Could not pause the job' },
  resume: {
    label: 'Resume',
    icon: <CirclePlay aria-hidden />,
    done: 'Job resumed',
    failed: 'Could not resume the job',
  },
}

function RowMenu({ job }: { job: Job }) {
  const [cancelling, setCancelling] = useState(false)
  const [deleting, setDeleting] = useState(false)
  const remove = useDeleteJob()
  const navigate = useNavigate()
  const act = useJobAction()
  const entries = actionsOf(job).map((action): MenuEntry => {
    if (action === 'cancel')
      return { label: 'Cancel…', icon: <Ban aria-hidden />, danger: true, onClick: () => setCancelling(true) }
    const { label, icon, done, failed } = words[action]
    return {
      label,
      icon,
      onClick: () =>
        act.mutate(
          { id: job.id, action },
          { onSuccess: () => toast.good(done, job.name), onError: toastError(failed) },
        ),
    }
  })
  return (
    <>
      <Menu
        trigger={<IconButton size="sm" label={`Actions for ${job.name}`} icon={<Ellipsis aria-hidden />} />}
        entries={[
          ...entries,
          {
            label: 'Clone',
            icon: <Copy aria-hidden />,
            onClick: () => void navigate({ to: '/jobs/new', search: { clone: job.id } }),
          },
          ...(isOver(job)
            ? [null, { label: 'Delete…', icon: <Trash2 aria-hidden />, danger: true, onClick: () => setDeleting(true) }]
            : []),
        ]}
      />
      <ConfirmDialog
        open={cancelling}
        onOpenChange={setCancelling}
        title={`Cancel ${job.name}?`}
        action="Cancel job"
        keep="Keep training"
        onConfirm={() => act.mutateAsync({ id: job.id, action: 'cancel' })}
      >
        The job ends without a model and can't be resumed. Its curves and log stay. To continue later, pause it instead.
      </ConfirmDialog>
      <ConfirmDialog
        open={deleting}
        onOpenChange={setDeleting}
        title={`Delete ${job.name}?`}
        action="Delete job"
        onConfirm={async () => {
          await remove.mutateAsync(job.id)
          toast.good('Job deleted', job.name)
        }}
      >
        Its curves, samples and log are deleted. {job.model && 'The model it trained stays, with its origin.'}
      </ConfirmDialog>
    </>
  )
}
