// Serializers from database rows to API responses.
import type { Delivery, DeliveryAttempt, Webhook } from '../../contract/webhooks.ts'
import { activeSecrets } from './payload.ts'
import type { AttemptRow, DeliveryRow, WebhookRow } from './store.ts'

const iso = (at: number) => new Date(at).toISOString()
const isoOrNull = (at: number | null) => (at === null ? null : iso(at))

export const webhookResponse = (row: WebhookRow, now: number): Webhook => ({
  id: row.id,
  url: row.url,
  events: JSON.parse(row.events_json),
  status: row.disabled_at === null ? 'active' : 'disabled',
  disabled_at: isoOrNull(row.disabled_at),
  disabled_reason: row.disabled_reason,
  failing_since: isoOrNull(row.failing_since),
  previous_secret_expires_at: isoOrNull(activeSecrets(row, now).at(-2)?.expires_at ?? null),
  created_at: iso(row.created_at),
  updated_at: iso(row.updated_at),
})

export const attemptResponse = ({
  number,
  started_at,
  duration_ms,
  response_status,
  response_body,
  error_json,
}: AttemptRow): DeliveryAttempt => ({
  number,
  started_at: iso(started_at),
  duration_ms,
  response_status,
  response_body,
  error: error_json === null ? null : JSON.parse(error_json),
})

export const deliveryResponse = (row: DeliveryRow, last: AttemptRow | undefined): Delivery => ({
  id: row.id,
  webhook_id: row.webhook_id,
  event_id: row.event_id,
  type: row.type,
  status: row.status,
  created_at: iso(row.created_at),
  next_attempt_at: isoOrNull(row.next_attempt_at),
  attempt_count: row.attempts,
  last_attempt: last ? attemptResponse(last) : null,
})
