import type { webhookEventTypes } from '../../../contract/webhooks.ts'
import { newId } from '../../../lib/ids.ts'
import { fromJson } from '../db/json.ts'
import type { Trx } from '../db/open.ts'
import type { Row } from '../db/schema.ts'

export type EventType = (typeof webhookEventTypes)[number]

/**
 * Transactional outbox: inserts an event, and a pending delivery for each webhook that subscribes to its type, in the
 * transaction of the change. So no event is lost, and none is sent for a change that was rolled back.
 */
export async function recordEvent(
  trx: Trx,
  account_id: string,
  type: EventType,
  data: Record<string, unknown>,
  created_at: number,
): Promise<void> {
  const event = await insertEvent(trx, account_id, type, data, created_at)
  const webhooks = await trx
    .selectFrom('webhooks')
    .select(['id', 'events_json'])
    .where('account_id', '=', account_id)
    .where('disabled_at', 'is', null)
    .execute()
  const subscribers = webhooks.filter(({ events_json }) => fromJson(events_json).includes(type))
  if (subscribers.length === 0) return
  await trx
    .insertInto('webhook_deliveries')
    .values(subscribers.map(({ id }) => newDelivery(id, event, created_at)))
    .execute()
}

interface EventRef {
  id: string
  account_id: string
  type: string
}

export async function insertEvent(
  trx: Trx,
  account_id: string,
  type: string,
  data: Record<string, unknown>,
  created_at: number,
): Promise<EventRef> {
  const event = { id: newId('evt'), account_id, type }
  await trx
    .insertInto('events')
    .values({ ...event, data_json: JSON.stringify(data), created_at })
    .execute()
  return event
}

/** A pending delivery that is due at once. */
export const newDelivery = (
  webhook_id: string,
  { id: event_id, account_id, type }: EventRef,
  created_at: number,
): Row<'webhook_deliveries'> => ({
  id: newId('dlv'),
  account_id,
  webhook_id,
  event_id,
  type,
  status: 'pending',
  attempts: 0,
  next_attempt_at: created_at,
  lease_until: null,
  created_at,
})
