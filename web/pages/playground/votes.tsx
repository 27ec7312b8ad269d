import { useMutation, useQueryClient } from '@tanstack/react-query'
import { useState } from 'react'
import { tunery } from '../../lib/api.ts'
import { plural } from '../../lib/format.ts'
import { useModelNames } from '../../lib/names.ts'
import { useMay } from '../../lib/session.ts'
import { utcDay } from '../../lib/utc-day.ts'
import { Button, TextLink } from '../../ui/button.tsx'
import { FormError, Notice } from '../../ui/feedback.tsx'
import { Form, FormButtons, NameField } from '../../ui/field.tsx'
import { Card } from '../../ui/layout.tsx'
import { ConfirmDialog, Dialog } from '../../ui/popups.tsx'
import type { Vote } from './state.ts'

/** A row of a preference dataset: the prompt, the better answer and the other one. */
const rowOf = ({ prompt, chosen, rejected }: Vote) =>
  JSON.stringify({
    prompt,
    chosen: [{ role: 'assistant', content: chosen }],
    rejected: [{ role: 'assistant', content: rejected }],
  })

/** The votes so far, and the way to learn from them. */
export function Votes({ votes, onClear }: { votes: readonly Vote[]; onClear: () => void }) {
  const [making, setMaking] = useState(false)
  const mayUpload = useMay('datasets:write')
  const nameOf = useModelNames()
  if (votes.length === 0) return null
  const wins = new Map<string, number>()
  for (const { models } of votes) wins.set(models.chosen, (wins.get(models.chosen) ?? 0) + 1)
  return (
    <Card title={plural(votes.length, 'vote')} description="Kept in this browser until you save them as a dataset.">
      <ul className="mb-3 grid gap-1 text-sm">
        {[...wins].map(([model, count]) => (
          <li key={model} className="flex justify-between gap-2">
            <span className="min-w-0 truncate">{nameOf(model)}</span>
            <span>{plural(count, 'win')}</span>
          </li>
        ))}
      </ul>
      <div className="flex flex-wrap gap-2">
        <Button size="sm" variant="primary" disabled={!mayUpload} onClick={() => setMaking(true)}>
          Save as dataset
        </Button>
        <ConfirmDialog
          trigger={<Button size="sm">Discard</Button>}
          title="Discard all votes?"
          action="Discard votes"
          onConfirm={onClear}
        >
          Votes that are not saved as a dataset are lost.
        </ConfirmDialog>
      </div>
      {making && <MakeDataset votes={votes} onClose={() => setMaking(false)} onMade={onClear} />}
    </Card>
  )
}

function MakeDataset({ votes, onClose, onMade }: { votes: readonly Vote[]; onClose: () => void; onMade: () => void }) {
  const [name, setName] = useState(`votes ${utcDay(Date.now())}`)
  const client = useQueryClient()
  const make = useMutation({
    mutationFn: () => tunery.datasets.upload(new Blob([`${votes.map(rowOf).join('\n')}\n`]), { name, format: 'jsonl' }),
    onSuccess: () => client.invalidateQueries({ queryKey: ['datasets'] }),
  })
  return (
    <Dialog
      open
      onOpenChange={(open) => {
        if (open) return
        onClose()
        if (make.isSuccess) onMade()
      }}
      title="Save votes as a dataset"
      description={`${plural(votes.length, 'preference pair')} to train on with DPO.`}
    >
      {make.isSuccess ? (
        <Notice tone="good" title="Dataset saved">
          <TextLink to="/datasets/$datasetId" params={{ datasetId: make.data.id }}>
            {make.data.name}
          </TextLink>
        </Notice>
      ) : (
        <Form onSubmit={() => make.mutate()}>
          <NameField value={name} onChange={setName} />
          <FormError error={make.error} />
          <FormButtons onCancel={onClose} busy={make.isPending} missing={!name.trim() && 'Enter a name.'}>
            Save dataset
          </FormButtons>
        </Form>
      )}
    </Dialog>
  )
}
