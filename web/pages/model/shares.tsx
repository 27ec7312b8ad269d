import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query'
import { Link2 } from 'lucide-react'
import { useMemo, useState } from 'react'
import { isTuneryError, type Share, type TunedModelDetails } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { formatCount } from '../../lib/format.ts'
import { useMay } from '../../lib/session.ts'
import { day_ms } from '../../lib/utc-day.ts'
import { Button } from '../../ui/button.tsx'
import { type Choice, Combobox } from '../../ui/choices.tsx'
import { EmptyState, FormError } from '../../ui/feedback.tsx'
import { Field, Form, FormButtons, NumberInput } from '../../ui/field.tsx'
import { Card } from '../../ui/layout.tsx'
import { ConfirmDialog, Dialog } from '../../ui/popups.tsx'
import { SecretDialog } from '../../ui/secret-dialog.tsx'
import { actionsColumn, Table } from '../../ui/table.tsx'
import { RelativeTime } from '../../ui/values.tsx'

/** Links to a page of the model for people without an account. Nothing where the operator has not turned them on. */
export function Shares({ model }: { model: TunedModelDetails }) {
  const mayWrite = useMay('deployments:write')
  const client = useQueryClient()
  const [creating, setCreating] = useState(false)
  const query = useQuery({
    queryKey: ['models', model.id, 'shares'],
    queryFn: ({ signal }) => tunery.models.shares.list(model.id, { limit: 100 }, { signal }),
    retry: false,
  })
  if (!query.data || (isTuneryError(query.error) && query.error.status < 500)) return null
  const refresh = () => client.invalidateQueries({ queryKey: ['models', model.id, 'shares'] })
  return (
    <Card
      title="Share links"
      description={
        "Anyone with a link sees the model's name, one evaluation and a limited chat, and nothing else of your " +
        'account.'
      }
      actions={
        mayWrite && (
          <Button icon={<Link2 aria-hidden />} onClick={() => setCreating(true)}>
            Create link
          </Button>
        )
      }
      flush
    >
      <Table
        label="Links"
        rows={query.data.items}
        rowId={({ id }: Share) => id}
        empty={<EmptyState compact title="No share links" />}
        columns={[
          { id: 'made', header: 'Created', grow: true, cell: (share) => <RelativeTime time={share.created_at} /> },
          {
            id: 'today',
            header: 'Questions today',
            align: 'right',
            cell: (share) => `${formatCount(share.requests_today)} of ${formatCount(share.requests_per_day)}`,
          },
          { id: 'expires', header: 'Expires', from: 'sm', cell: (share) => <RelativeTime time={share.expires_at} /> },
          {
            ...actionsColumn,
            cell: (share) =>
              mayWrite && (
                <ConfirmDialog
                  trigger={
                    <Button size="sm" variant="quiet">
                      Revoke
                    </Button>
                  }
                  title="Revoke this link?"
                  action="Revoke link"
                  onConfirm={async () => {
                    await tunery.models.shares.delete(model.id, share.id)
                    await refresh()
                  }}
                >
                  It stops working immediately.
                </ConfirmDialog>
              ),
          },
        ]}
      />
      {creating && <CreateShare model={model} onClose={() => setCreating(false)} refresh={refresh} />}
    </Card>
  )
}

function CreateShare({
  model,
  onClose,
  refresh,
}: {
  model: TunedModelDetails
  onClose: () => void
  refresh: () => Promise<unknown>
}) {
  const [evaluation, setEvaluation] = useState<string | null>(null)
  const [requests, setRequests] = useState<number | null>(50)
  const [tokens, setTokens] = useState<number | null>(256)
  const [days, setDays] = useState<number | null>(30)
  const evaluations = useQuery({
    queryKey: ['evaluations', 'of', model.id],
    queryFn: async ({ signal }) => {
      const { items } = await tunery.evaluations.list({ limit: 100 }, { signal })
      return items
        .filter((item) => item.model === model.id && item.status === 'completed')
        .map(({ id, name }): Choice => ({ value: id, label: name }))
    },
  })
  // Set once for a form: sent again it is the same request.
  const expires_at = useMemo(
    () => (days === null ? undefined : new Date(Date.now() + days * day_ms).toISOString()),
    [days],
  )
  const create = useMutation({
    mutationFn: () =>
      tunery.models.shares.create(model.id, {
        ...(evaluation && { evaluation }),
        ...(expires_at && { expires_at }),
        requests_per_day: requests ?? 50,
        max_tokens: tokens ?? 256,
      }),
    onSuccess: refresh,
  })
  if (create.data)
    return (
      <SecretDialog secret={create.data.link} title="Share link" onClose={onClose}>
        Anyone with this link can see the model's page and chat with the model within its limits.
      </SecretDialog>
    )
  return (
    <Dialog open onOpenChange={(open) => !open && onClose()} title="Create share link">
      <Form onSubmit={() => create.mutate()}>
        <Field label="Evaluation" optional help="Its result is shown on the page.">
          <Combobox
            value={evaluation}
            onChange={setEvaluation}
            choices={evaluations.data ?? []}
            placeholder="None"
            empty="No completed evaluations of this model"
            clearable
          />
        </Field>
        <div className="grid items-start gap-4 sm:grid-cols-3">
          <Field label="Questions per day" help="All visitors together.">
            <NumberInput value={requests} onChange={setRequests} min={1} max={10_000} />
          </Field>
          <Field label="Max tokens" help="Per answer.">
            <NumberInput value={tokens} onChange={setTokens} min={1} max={2048} />
          </Field>
          <Field label="Expires after (days)" help="Leave empty for no expiry.">
            <NumberInput value={days} onChange={setDays} min={1} max={3650} />
          </Field>
        </div>
        <FormError error={create.error} />
        <FormButtons onCancel={onClose} busy={create.isPending}>
          Create link
        </FormButtons>
      </Form>
    </Dialog>
  )
}
