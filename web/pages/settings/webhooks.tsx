import { useQueryClient } from '@tanstack/react-query'
import { Plus, Webhook as WebhookIcon } from 'lucide-react'
import { useState } from 'react'
import type { Webhook } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { usePages } from '../../lib/pages.ts'
import { useMay } from '../../lib/session.ts'
import { Button, ExternalLink } from '../../ui/button.tsx'
import { EmptyState, Loaded, Status } from '../../ui/feedback.tsx'
import { Card } from '../../ui/layout.tsx'
import { SecretDialog } from '../../ui/secret-dialog.tsx'
import { Table } from '../../ui/table.tsx'
import { RelativeTime } from '../../ui/values.tsx'
import { WebhookDetails } from './webhook.tsx'
import { CreateWebhook } from './webhook-form.tsx'

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
          Signed events are sent to these endpoints.{' '}
          <ExternalLink href="/docs/guides/receive-webhooks">How to receive webhooks</ExternalLink>
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
                Get notified when a job ends, a model is deployed, or a usage alert fires.
              </EmptyState>
            }
            columns={[
              { id: 'url', header: 'Endpoint', grow: true, cell: (webhook) => webhook.url },
              { id: 'events', header: 'Events', from: 'md', align: 'right', cell: (webhook) => webhook.events.length },
              {
                id: 'status',
                header: 'Status',
                cell: (webhook) => (
                  <Status
                    status={webhook.status === 'active' && webhook.failing_since ? 'failing' : webhook.status}
                    tone={webhook.status === 'disabled' || webhook.failing_since ? 'warn' : 'good'}
                  />
                ),
              },
              {
                id: 'changed',
                header: 'Changed',
                from: 'sm',
                cell: (webhook) => <RelativeTime time={webhook.updated_at} />,
              },
            ]}
          />
        )}
      </Loaded>
      <CreateWebhook
        open={creating}
        onClose={() => setCreating(false)}
        onCreated={(webhook) => {
          setCreating(false)
          setSecret(webhook)
          void refresh()
        }}
      />
      <SecretDialog secret={secret} title="Signing secret" onClose={() => setSecret(undefined)}>
        Use it to verify the signature of each event.
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
