import { type UseMutationResult, useMutation, useQuery, useQueryClient } from '@tanstack/react-query'
import { RotateCw, Send } from 'lucide-react'
import { useState } from 'react'
import type { Delivery, DeliveryAttempt, Webhook } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { formatTime, plural } from '../../lib/format.ts'
import { usePages } from '../../lib/pages.ts'
import { refresh_ms } from '../../lib/query.ts'
import { Button } from '../../ui/button.tsx'
import { CodeBlock } from '../../ui/code.tsx'
import { EmptyState, Loaded, Notice, Status, type Tone } from '../../ui/feedback.tsx'
import { Facts } from '../../ui/layout.tsx'
import { ConfirmDialog, Dialog } from '../../ui/popups.tsx'
import { Table } from '../../ui/table.tsx'
import { toast, toastError } from '../../ui/toast.tsx'
import { Code, RelativeTime } from '../../ui/values.tsx'
import { EditWebhook } from './webhook-form.tsx'

const tones: Record<Delivery['status'], Tone> = {
  pending: 'neutral',
  delivered: 'good',
  failed: 'bad',
  blocked_address: 'bad',
}

/** One webhook: what was sent to it, and what can be done with it. */
export function WebhookDetails({
  webhook,
  mayWrite,
  onClose,
  onSecret,
  refresh,
}: {
  webhook: Webhook
  mayWrite: boolean
  onClose: () => void
  onSecret: (secret: string | undefined) => void
  refresh: () => Promise<unknown>
}) {
  const { id, url, events, disabled_reason, failing_since } = webhook
  const [editing, setEditing] = useState(false)
  const deliveries = useDeliveries(id)
  const change = useMutation({
    mutationFn: (disabled: boolean) => tunery.webhooks.update(id, { disabled }),
    onSuccess: refresh,
    onError: toastError('Could not update the webhook'),
  })
  const reasons = {
    requested: 'A member disabled it.',
    gone: 'The endpoint answered 410 Gone, so no more events are sent.',
    failing: 'Every delivery failed for about three days.',
  }
  return (
    <Dialog
      open
      onOpenChange={(open) => !open && onClose()}
      title="Webhook"
      description={<Code>{url}</Code>}
      width="lg"
      footer={
        mayWrite && (
          <Actions
            webhook={webhook}
            change={change}
            onEdit={() => setEditing(true)}
            onTested={() => deliveries.query.refetch()}
            onClose={onClose}
            onSecret={onSecret}
            refresh={refresh}
          />
        )
      }
    >
      <div className="grid gap-4">
        {disabled_reason && (
          <Notice tone="warn" title="Disabled">
            {reasons[disabled_reason]}
          </Notice>
        )}
        {failing_since && !disabled_reason && (
          <Notice
            tone="warn"
            title="Failing"
            action={
              mayWrite && (
                <Button size="sm" busy={change.isPending} onClick={() => change.mutate(false)}>
                  Retry now
                </Button>
              )
            }
          >
            Every attempt has failed since {formatTime(failing_since)}, so attempts are further and further apart.
          </Notice>
        )}
        <Facts facts={[['Events', events.join(', ')]]} />
        <Deliveries webhookId={id} deliveries={deliveries} mayWrite={mayWrite} />
        {editing && <EditWebhook webhook={webhook} onClose={() => setEditing(false)} refresh={refresh} />}
      </div>
    </Dialog>
  )
}

/** What can be done with a webhook. */
function Actions({
  webhook: { id, status },
  change,
  onEdit,
  onTested,
  onClose,
  onSecret,
  refresh,
}: {
  webhook: Webhook
  change: UseMutationResult<unknown, Error, boolean>
  onEdit: () => void
  onTested: () => Promise<unknown>
  onClose: () => void
  onSecret: (secret: string | undefined) => void
  refresh: () => Promise<unknown>
}) {
  const test = useMutation({
    mutationFn: () => tunery.webhooks.test(id),
    onSuccess: onTested,
    onError: toastError('Could not send the test event'),
  })
  return (
    <>
      <ConfirmDialog
        trigger={<Button>Delete</Button>}
        title="Delete the webhook?"
        action="Delete webhook"
        onConfirm={async () => {
          await tunery.webhooks.delete(id)
          onClose()
          await refresh()
        }}
      >
        Its delivery log is deleted too, and pending events are not sent.
      </ConfirmDialog>
      <ConfirmDialog
        trigger={<Button>Rotate secret</Button>}
        title="Rotate the signing secret?"
        action="Rotate secret"
        danger={false}
        onConfirm={async () => {
          const { secret } = await tunery.webhooks.rotateSecret(id, {})
          await refresh()
          onSecret(secret)
        }}
      >
        Events are signed with both secrets for 24 hours, so you can switch without losing any.
      </ConfirmDialog>
      <Button onClick={onEdit}>Edit</Button>
      <Button busy={change.isPending} onClick={() => change.mutate(status === 'active')}>
        {status === 'active' ? 'Disable' : 'Enable'}
      </Button>
      <Button variant="primary" icon={<Send aria-hidden />} busy={test.isPending} onClick={() => test.mutate()}>
        Send test event
      </Button>
    </>
  )
}

const useDeliveries = (id: string) =>
  usePages(['webhooks', id, 'deliveries'], (options) => tunery.webhooks.deliveries.list(id, { limit: 25 }, options), {
    refresh_ms,
  })

/** What was sent to a webhook, and the delivery that is open. */
function Deliveries({
  webhookId,
  deliveries,
  mayWrite,
}: {
  webhookId: string
  deliveries: ReturnType<typeof useDeliveries>
  mayWrite: boolean
}) {
  const [openId, setOpenId] = useState<string>()
  return (
    <>
      <div className="-mx-5">
        <Loaded query={deliveries.query}>
          {() => (
            <Table
              label="Deliveries"
              rows={deliveries.rows ?? []}
              rowId={(delivery: Delivery) => delivery.id}
              more={deliveries.more}
              onOpen={(delivery) => setOpenId(delivery.id === openId ? undefined : delivery.id)}
              empty={
                <EmptyState compact title="No deliveries yet">
                  Send a test event to check your endpoint.
                </EmptyState>
              }
              columns={[
                { id: 'type', header: 'Event', grow: true, cell: (delivery) => delivery.type },
                {
                  id: 'status',
                  header: 'Status',
                  cell: (delivery) => <Status status={delivery.status} tone={tones[delivery.status]} />,
                },
                {
                  id: 'answer',
                  header: 'Response',
                  from: 'sm',
                  cell: (delivery) =>
                    delivery.last_attempt?.response_status ??
                    delivery.last_attempt?.error?.code.replaceAll('_', ' ') ??
                    '–',
                },
                {
                  id: 'when',
                  header: 'When',
                  align: 'right',
                  cell: (delivery) => <RelativeTime time={delivery.created_at} />,
                },
              ]}
            />
          )}
        </Loaded>
      </div>
      {openId && (
        <DeliveryView
          key={openId}
          webhookId={webhookId}
          deliveryId={openId}
          mayWrite={mayWrite}
          onSentAgain={setOpenId}
        />
      )}
    </>
  )
}

function DeliveryView({
  webhookId,
  deliveryId,
  mayWrite,
  onSentAgain,
}: {
  webhookId: string
  deliveryId: string
  mayWrite: boolean
  /** With the id of the new delivery. */
  onSentAgain: (id: string) => void
}) {
  const client = useQueryClient()
  const query = useQuery({
    queryKey: ['webhooks', webhookId, 'deliveries', deliveryId],
    queryFn: ({ signal }) => tunery.webhooks.deliveries.get(webhookId, deliveryId, { signal }),
    refetchInterval: ({ state }) => (state.data?.status === 'pending' ? refresh_ms : false),
  })
  const redeliver = useMutation({
    mutationFn: () => tunery.webhooks.deliveries.redeliver(webhookId, deliveryId),
    onSuccess: async ({ id }) => {
      await client.invalidateQueries({ queryKey: ['webhooks', webhookId, 'deliveries'] })
      toast.good('Event resent')
      onSentAgain(id)
    },
    onError: toastError('Could not resend the event'),
  })
  return (
    <section aria-label="Delivery" className="grid gap-3 rounded-md p-4 ring-1 ring-line">
      <Loaded query={query}>
        {(delivery) => (
          <>
            <div className="flex flex-wrap items-center justify-between gap-2">
              <h3 className="font-semibold">
                {delivery.type}, {plural(delivery.attempt_count, 'attempt')}
              </h3>
              {mayWrite && (
                <Button
                  size="sm"
                  icon={<RotateCw aria-hidden />}
                  busy={redeliver.isPending}
                  onClick={() => redeliver.mutate()}
                >
                  Redeliver
                </Button>
              )}
            </div>
            <CodeBlock title="Body" code={pretty(delivery.payload)} wrap maxHeight="14rem" />
            {delivery.attempts.map((attempt) => (
              <Attempt key={attempt.number} attempt={attempt} />
            ))}
            {delivery.next_attempt_at && (
              <p className="text-sm text-muted">
                Next attempt <RelativeTime time={delivery.next_attempt_at} />
              </p>
            )}
          </>
        )}
      </Loaded>
    </section>
  )
}

function Attempt({ attempt }: { attempt: DeliveryAttempt }) {
  const { number, started_at, duration_ms, response_status, response_body, error } = attempt
  return (
    <div className="text-sm">
      <p>
        <span className="font-medium">Attempt {number}</span>, {formatTime(started_at)}, {duration_ms} ms:{' '}
        {error ? <span className="text-bad">{error.message}</span> : `answered ${response_status}`}
      </p>
      {response_body && (
        <CodeBlock title={`Response to attempt ${number}`} code={response_body} wrap maxHeight="8rem" />
      )}
    </div>
  )
}

function pretty(text: string): string {
  try {
    return JSON.stringify(JSON.parse(text), null, 2)
  } catch {
    return text
  }
}
