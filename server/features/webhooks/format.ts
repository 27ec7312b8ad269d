// The two formats of events: this service's own, and that of OpenAI's webhooks, which its clients verify and read.

import { ApiError } from '../../../contract/errors.ts'
import { type EventName, openaiEventTypes, type WebhookFormat, webhookEventTypes } from '../../../contract/webhooks.ts'
import { isoTime, unixSeconds } from '../../../lib/utc-day.ts'
import { fromJson } from '../../platform/db/json.ts'
import type { Row } from '../../platform/db/schema.ts'
import type { EventType } from '../../platform/events/outbox.ts'

const openaiNames = new Map(Object.entries(openaiEventTypes).map(([name, type]) => [type as string, name as EventName]))

/** The types of this service that a webhook subscribes to. Throws for a name of the other format. */
export function typesOf(events: readonly EventName[], format: WebhookFormat): EventType[] {
  const types: Partial<Record<EventName, EventType>> =
    format === 'openai' ? openaiEventTypes : Object.fromEntries(webhookEventTypes.map((type) => [type, type]))
  return events.map((name) => {
    const type = types[name]
    if (type) return type
    throw new ApiError(
      'invalid_request',
      `'events': '${name}' is not of the format '${format}', which has ${Object.keys(types).join(', ')}.`,
      { param: 'events', details: { field: 'events' } },
    )
  })
}

/** The name of an event in a format. The event of a test has the same in both. */
export const nameIn = (format: WebhookFormat, type: string): string =>
  format === 'openai' ? (openaiNames.get(type) ?? type) : type

/** The body of an event's deliveries: the same bytes in each attempt, because only the event's row is used. */
export function payloadOf({ id, type, created_at, data_json }: Row<'events'>, format: WebhookFormat): string {
  if (format === 'tunery') {
    const head = JSON.stringify({ id, type, created_at: isoTime(created_at) })
    return `${head.slice(0, -1)},"data":${data_json}}`
  }
  const { job_id, batch_id, webhook_id } = fromJson(data_json)
  return JSON.stringify({
    id,
    object: 'event',
    created_at: unixSeconds(created_at),
    type: nameIn(format, type),
    data: { id: job_id ?? batch_id ?? webhook_id },
  })
}
