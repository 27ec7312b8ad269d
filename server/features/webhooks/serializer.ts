// Serializers from database rows to API responses.

import type { Delivery, DeliveryAttempt, EventName, Webhook } from '../../../contract/webhooks.ts'
import { isoTime } from '../../../lib/utc-day.ts'
import { fromJson } from '../../platform/db/json.ts'
import { nameIn } from './format.ts'
import { activeSecrets } from './secrets.ts'
import type { AttemptRow, DeliveryRow, WebhookRow } from './store.ts'

export const toWebhookResponse = (row: WebhookRow, now: number): Webhook => ({
  id: row.id,
  url: row.url,
  format: row.format,
  events: fromJson(row.events_json).map((type) => nameIn(row.format, type) as EventName),
  status: row.disabled_at === null ? 'active' : 'disabled',
  disabled_at: isoTime(row.disabled_at),
  disabled_reason: row.disabled_reason,
  failing_since: isoTime(row.failing_since),
  previous_secret_expires_at: isoTime(activeSecrets(row, now).at(-2)?.expires_at ?? null),
  created_at: isoTime(row.created_at),
  updated_at: isoTime(row.updated_at),
})

export const toAttemptResponse = ({
  number,
  started_at,
  duration_ms,
  response_status,
  response_body,
  error_json,
}: AttemptRow): DeliveryAttempt => ({
  number,
  started_at: isoTime(started_at),
  duration_ms,
  response_status,
  response_body,
  error: fromJson(error_json),
})

export const toDeliveryResponse = (
  row: DeliveryRow,
  { format }: Pick<WebhookRow, 'format'>,
  last: AttemptRow | undefined,
): Delivery => ({
  id: row.id,
  webhook_id: row.webhook_id,
  event_id: row.event_id,
  type: nameIn(format, row.type),
  status: row.status,
  created_at: isoTime(row.created_at),
  next_attempt_at: isoTime(row.next_attempt_at),
  attempt_count: row.attempts,
  last_attempt: last ? toAttemptResponse(last) : null,
})
