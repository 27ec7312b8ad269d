import { useMutation, useQueryClient } from '@tanstack/react-query'
import { Plus, Webhook as WebhookIcon } from 'lucide-react'
import { useState } from 'react'
import { webhookEventTypes } from '../../../contract/webhooks.ts'
import type { Webhook } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { fieldError } from '../../lib/errors.ts'
import { usePages } from '../../lib/pages.ts'
import { useMay } from '../../lib/session.ts'
import { Button, ExternalLink } from '../../ui/button.tsx'
import { EmptyState, FormError, Loaded, Status } from '../../ui/feedback.tsx'
import { Field, Form, FormButtons, Input } from '../../ui/field.tsx'
import { Card } from '../../ui/layout.tsx'
import { Dialog } from '../../ui/popups.tsx'
import { SecretDialog } from '../../ui/secret-dialog.tsx'
import { Table } from '../../ui/table.tsx'
import { Checkbox } from '../../ui/toggles.tsx'
import { RelativeTime } from '../../ui/values.tsx'
import { WebhookDetails } from './webhook.tsx'

/** Addresses that hear of events. */
export function Webhooks() {
  const mayWrite = useMay('webhooks:write')
  const client = useQueryClient()
  const [creating, setCreating] = useState(false)
  const [secret, setSecret] = useState<string>()
  const [openId, setOpenId] = useState<string>()
  const {
    query,
    rows = [],
    more,
  } = usePages(['webhooks', 'list'], (options) => tunery.webhooks.list({ limit: 50 }, options))
  const open = rows.find(({ id }) => id === openId)
  const refresh = () => client.invalidateQueries({ queryKey: ['webhooks'] })
  return (
    <Card
      title="Webhooks"
      description={
        <>
          Events of the account are posted to these addresses, signed.{' '}
          <ExternalLink href="/docs/guides/receive-webhooks">How to receive them</ExternalLink>
        </>
      }
      actions={
        mayWrite && (
          <Button variant="primary" icon={<Plus aria-hidden />} onClick={() => setCreating(true)}>
            Add webhook
          </Button>
        )
      }
      flush
    >
      <Loaded query={query}>
        {() => (
          <Table
            label="Webhooks"
            rows={rows}
            rowId={({ id }: Webhook) => id}
            more={more}
            onOpen={({ id }) => setOpenId(id)}
            empty={
              <EmptyState compact icon={<WebhookIcon aria-hidden />} title="No webhooks yet">
                Your server can hear when a training ends, a model is deployed, or a usage threshold is reached.
              </EmptyState>
            }
            columns={[
              { id: 'url', header: 'Address', grow: true, cell: (each) => each.url },
              { id: 'events', header: 'Events', from: 'md', align: 'right', cell: (each) => each.events.length },
              {
                id: 'status',
                header: 'Status',
                cell: (each) => (
                  <Status
                    status={each.status === 'active' && each.failing_since ? 'failing' : each.status}
                    tone={each.status === 'disabled' || each.failing_since ? 'warn' : 'good'}
                  />
                ),
              },
              { id: 'changed', header: 'Changed', from: 'sm', cell: (each) => <RelativeTime time={each.updated_at} /> },
            ]}
          />
        )}
      </Loaded>
      <CreateWebhook
        open={creating}
        onClose={() => setCreating(false)}
        onCreated={(made) => {
          setCreating(false)
          setSecret(made)
          void refresh()
        }}
      />
      <SecretDialog secret={secret} title="The webhook's secret" onClose={() => setSecret(undefined)}>
        Your server checks the signature of each event with it.
      </SecretDialog>
      {open && (
        <WebhookDetails
          webhook={open}
          mayWrite={mayWrite}
          onClose={() => setOpenId(undefined)}
          onSecret={setSecret}
          refresh={refresh}
        />
      )}
    </Card>
  )
}

function CreateWebhook({
  open,
  onClose,
  onCreated,
}: {
  open: boolean
  onClose: () => void
  onCreated: (secret: string | undefined) => void
}) {
  const [url, setUrl] = useState('')
  const [events, setEvents] = useState<ReadonlySet<string>>(
    new Set(['training.completed', 'training.failed', 'usage.threshold']),
  )
  const create = useMutation({
    mutationFn: () =>
      tunery.webhooks.create({
        url: url.trim(),
        events: webhookEventTypes.filter((type) => events.has(type)) as [(typeof webhookEventTypes)[number]],
      }),
    onSuccess: ({ secret }) => {
      setUrl('')
      onCreated(secret)
    },
  })
  const toggle = (type: string, on: boolean) => {
    const next = new Set(events)
    if (on) next.add(type)
    else next.delete(type)
    setEvents(next)
  }
  return (
    <Dialog open={open} onOpenChange={(next) => !next && onClose()} title="Add a webhook">
      <Form onSubmit={() => create.mutate()}>
        <Field
          label="Address"
          help="http or https. Addresses of private networks are refused, unless the operator allows them."
          error={fieldError(create.error, 'url')}
        >
          <Input
            type="url"
            placeholder="https://example.com/hooks/tunery"
            value={url}
            onChange={(event) => setUrl(event.target.value)}
          />
        </Field>
        <fieldset className="grid gap-2 sm:grid-cols-2">
          <legend className="mb-2 font-medium">Events</legend>
          {webhookEventTypes.map((type) => (
            <Checkbox key={type} label={type} checked={events.has(type)} onChange={(on) => toggle(type, on)} />
          ))}
        </fieldset>
        <FormError error={create.error} fields={['url']} />
        <FormButtons onCancel={onClose} busy={create.isPending} disabled={!url.trim() || events.size === 0}>
          Add webhook
        </FormButtons>
      </Form>
    </Dialog>
  )
}
