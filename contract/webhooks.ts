import { z } from 'zod'
import { Deleted, ListQuery, page, Time } from './common.ts'
import { routesOf } from './route.ts'

/** The events of the specification, and `training.cancelled`: a queued or running job was cancelled. */
export const webhookEventTypes = [
  'training.started',
  'training.completed',
  'training.failed',
  'training.cancelled',
  'model.deployed',
  'usage.threshold',
  'batch.completed',
  'batch.failed',
  'batch.expired',
  'batch.cancelled',
] as const

/** Which event of this service each event of OpenAI's webhooks is. */
export const openaiEventTypes = {
  'fine_tuning.job.succeeded': 'training.completed',
  'fine_tuning.job.failed': 'training.failed',
  'fine_tuning.job.cancelled': 'training.cancelled',
  'batch.completed': 'batch.completed',
  'batch.failed': 'batch.failed',
  'batch.expired': 'batch.expired',
  'batch.cancelled': 'batch.cancelled',
} as const satisfies Record<string, (typeof webhookEventTypes)[number]>

export const EventName = z.enum([
  ...new Set([...webhookEventTypes, ...(Object.keys(openaiEventTypes) as (keyof typeof openaiEventTypes)[])]),
])
export type EventName = z.infer<typeof EventName>

export const WebhookFormat = z
  .enum(['tunery', 'openai'])
  .describe("How events are written. `openai`: as OpenAI's webhooks are, with its names of events.")
export type WebhookFormat = z.infer<typeof WebhookFormat>

const Url = z
  .string()
  .min(1)
  .max(2048)
  .describe('http or https, on any port; addresses that are not of the public internet are refused.')
const Events = z
  .array(EventName)
  .min(1)
  .max(EventName.options.length)
  .refine((types) => new Set(types).size === types.length, 'has an event type twice')
const Secret = z
  .string()
  .min(1)
  .max(256)
  .describe(
    'Printable ASCII. After the prefix `whsec_` it must be base64. ' +
      'Generated if left out, and then shown only in this response.',
  )

export const Webhook = z.object({
  id: z.string(),
  url: z.string(),
  format: WebhookFormat,
  events: z.array(EventName),
  status: z.enum(['active', 'disabled']),
  disabled_at: Time.nullable(),
  disabled_reason: z
    .enum(['requested', 'gone', 'failing'])
    .nullable()
    .describe('`requested` by a change, `gone` after an answer of 410, `failing` after three days without a success.'),
  failing_since: Time.nullable().describe('Since when every try has failed; null if the last one succeeded.'),
  previous_secret_expires_at: Time.nullable().describe('Until when the secret before the last rotation is also valid.'),
  created_at: Time,
  updated_at: Time,
})
export type Webhook = z.infer<typeof Webhook>

export const NewWebhook = Webhook.extend({
  secret: z.string().optional().describe('The secret that was made; it is shown this once and cannot be read again.'),
})
export type NewWebhook = z.infer<typeof NewWebhook>

const Failure = z.object({
  code: z.enum(['blocked_address', 'dns_failed', 'tls_failed', 'connection_failed', 'timeout', 'http_error']),
  message: z.string(),
})

export const DeliveryAttempt = z.object({
  number: z.int(),
  started_at: Time,
  duration_ms: z.int(),
  response_status: z.int().nullable(),
  response_body: z.string().nullable().describe('The first kB of the answer.'),
  error: Failure.nullable(),
})
export type DeliveryAttempt = z.infer<typeof DeliveryAttempt>

export const Delivery = z.object({
  id: z.string(),
  webhook_id: z.string(),
  event_id: z.string().describe('The `id` of the payload and the header `webhook-id`: the same at every try.'),
  type: z.string(),
  status: z
    .enum(['pending', 'delivered', 'failed', 'blocked_address'])
    .describe('`blocked_address`: the name led to an address that webhooks may not reach; it is not tried again.'),
  created_at: Time,
  next_attempt_at: Time.nullable().describe(
    'Time of the next try, as planned before the webhook was slowed or disabled.',
  ),
  attempt_count: z.int(),
  last_attempt: DeliveryAttempt.nullable(),
})
export type Delivery = z.infer<typeof Delivery>

export const DeliveryDetails = Delivery.extend({
  payload: z.string().describe('The body that is sent.'),
  attempts: z.array(DeliveryAttempt).describe('Oldest first.'),
})
export type DeliveryDetails = z.infer<typeof DeliveryDetails>

const route = routesOf({ tag: 'Webhooks' })
const WebhookParams = z.object({ webhook_id: z.string() })
const DeliveryParams = z.object({ webhook_id: z.string(), delivery_id: z.string() })

export const createWebhook = route('POST', '/webhooks', {
  scope: 'webhooks:write',
  summary: 'Register a URL for events; each is posted to it, signed',
  body: z.strictObject({
    url: Url,
    events: Events,
    format: WebhookFormat.default('tunery'),
    secret: Secret.optional(),
  }),
  responses: { 201: NewWebhook },
})
export const listWebhooks = route('GET', '/webhooks', {
  scope: 'webhooks:read',
  summary: 'The webhooks of the account, newest first, without their secrets',
  query: ListQuery,
  responses: { 200: page(Webhook) },
})
export const getWebhook = route('GET', '/webhooks/{webhook_id}', {
  scope: 'webhooks:read',
  summary: 'One webhook',
  params: WebhookParams,
  responses: { 200: Webhook },
})
export const changeWebhook = route('PUT', '/webhooks/{webhook_id}', {
  scope: 'webhooks:write',
  summary: 'Change the URL or the events, disable a webhook, or enable it again, which also ends its being slowed',
  params: WebhookParams,
  body: z.strictObject({ url: Url.optional(), events: Events.optional(), disabled: z.boolean().optional() }),
  responses: { 200: Webhook },
})
export const deleteWebhook = route('DELETE', '/webhooks/{webhook_id}', {
  scope: 'webhooks:write',
  summary: 'Delete a webhook with its deliveries',
  params: WebhookParams,
  responses: { 200: Deleted },
})
export const rotateSecret = route('POST', '/webhooks/{webhook_id}/rotate', {
  creates: true,
  scope: 'webhooks:write',
  summary: 'Give a webhook another secret; those before it stay in force for the overlap',
  params: WebhookParams,
  body: z
    .strictObject({
      secret: Secret.optional(),
      overlap_hours: z.int().min(0).max(168).default(24).describe('0 ends every secret before the new one at once.'),
    })
    .nullish(),
  responses: { 200: NewWebhook },
})
export const testWebhook = route('POST', '/webhooks/{webhook_id}/test', {
  scope: 'webhooks:write',
  summary: 'Send an event `webhook.test` to this webhook alone, in one try, also where it is slowed or disabled',
  params: WebhookParams,
  body: z.strictObject({}).nullish(),
  responses: { 201: Delivery },
})
export const listDeliveries = route('GET', '/webhooks/{webhook_id}/deliveries', {
  scope: 'webhooks:read',
  summary: 'What was sent to a webhook, or is to be, newest first',
  params: WebhookParams,
  query: ListQuery,
  responses: { 200: page(Delivery) },
})
export const getDelivery = route('GET', '/webhooks/{webhook_id}/deliveries/{delivery_id}', {
  scope: 'webhooks:read',
  summary: 'One delivery with its body and every try',
  params: DeliveryParams,
  responses: { 200: DeliveryDetails },
})
export const redeliver = route('POST', '/webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver', {
  scope: 'webhooks:write',
  summary: 'Send the same event once more, as another delivery',
  params: DeliveryParams,
  body: z.strictObject({}).nullish(),
  responses: { 201: Delivery },
})
