import type { Logger } from 'pino'
import type { z } from 'zod'
import type { ListQuery } from '../../../contract/common.ts'
import { ApiError } from '../../../contract/errors.ts'
import type {
  changeWebhook,
  createWebhook,
  Delivery,
  DeliveryDetails,
  NewWebhook,
  rotateSecret,
  Webhook,
} from '../../../contract/webhooks.ts'
import { newId } from '../../../lib/ids.ts'
import { hour_ms } from '../../../lib/utc-day.ts'
import type { Db, Queryable, Trx } from '../../platform/db/open.ts'
import { type Page, pageOf } from '../../platform/db/page.ts'
import { type AccountActor, recordAuditEntry } from '../../platform/events/audit.ts'
import { insertEvent, newDelivery } from '../../platform/events/outbox.ts'
import { type AddressRules, type Resolve, resolve as resolveByDns } from '../../platform/outbound/addresses.ts'
import { newSecret, secretProblem } from '../../platform/outbound/signature.ts'
import { BadTarget, readTarget } from '../../platform/outbound/target.ts'
import type { Secrets } from '../../platform/storage/secrets.ts'
import type { ServerMetrics } from '../../platform/telemetry/metrics.ts'
import { Deliverer } from './deliver.ts'
import { payloadOf, typesOf } from './format.ts'
import { healthy } from './schedule.ts'
import { activeSecrets } from './secrets.ts'
import { createSend } from './send.ts'
import { toAttemptResponse, toDeliveryResponse, toWebhookResponse } from './serializer.ts'
import * as store from './store.ts'

interface Options {
  db: Db
  secrets: Secrets
  rules: AddressRules
  /** The most webhooks per account. */
  max: number
  version: string
  log: Logger
  metrics: ServerMetrics
  now?: () => number
  resolve?: Resolve
  timeout_ms?: number
}

/** The most active secrets of a webhook. */
const secretsMax = 4

export class Webhooks {
  private readonly options: Required<Pick<Options, 'now' | 'resolve' | 'timeout_ms'>> & Options
  readonly deliverer: Deliverer

  constructor(options: Options) {
    this.options = {
      ...options,
      now: options.now ?? Date.now,
      resolve: options.resolve ?? resolveByDns,
      timeout_ms: options.timeout_ms ?? 15_000,
    }
    const { db, secrets, rules, version, log, metrics, now, resolve, timeout_ms } = this.options
    this.deliverer = new Deliverer({
      db,
      secrets,
      send: createSend({ rules, resolve, timeout_ms }),
      version,
      log,
      metrics,
      now,
    })
  }

  async create(
    by: AccountActor,
    { url, events, format = 'tunery', secret }: z.input<typeof createWebhook.body>,
  ): Promise<NewWebhook> {
    const { db, secrets, max, now } = this.options
    const types = typesOf(events, format)
    const { host } = this.requireTarget(url)
    const used = requireSecret(secret)
    const row = await db.transaction().execute(async (trx) => {
      if ((await store.countWebhooks(trx, by.account_id)) >= max)
        throw new ApiError(
          'too_many',
          `The account has ${max} webhooks, which is the most it may have. Delete one first.`,
          { details: { max } },
        )
      const [id, time] = [newId('whk'), now()]
      const created = {
        id,
        account_id: by.account_id,
        url,
        format,
        events_json: JSON.stringify(types),
        secrets_json: JSON.stringify([{ sealed: secrets.encrypt(used, id), expires_at: null }]),
        ...healthy,
        created_at: time,
        updated_at: time,
      }
      await store.insertWebhook(trx, created)
      await recordAuditEntry(trx, by, 'webhook.created', id, { host, format, events }, time)
      return created
    })
    return { ...toWebhookResponse(row, now()), ...(secret === undefined && { secret: used }) }
  }

  async list(account_id: string, { limit, after }: ListQuery): Promise<Page<Webhook>> {
    const { db, now } = this.options
    const last = after ? await store.findWebhook(db, account_id, after) : undefined
    if (after && !last) throw new ApiError('webhook_not_found', `There is no webhook '${after}' to continue after.`)
    const rows = await store.listWebhooks(db, account_id, limit, last)
    return pageOf(
      rows.map((row) => toWebhookResponse(row, now())),
      limit,
    )
  }

  async get(account_id: string, id: string): Promise<Webhook> {
    const { db, now } = this.options
    return toWebhookResponse(await find(db, account_id, id), now())
  }

  async change(
    by: AccountActor,
    id: string,
    { url, events, disabled }: z.output<typeof changeWebhook.body>,
  ): Promise<Webhook> {
    const { db, now } = this.options
    const host = url === undefined ? undefined : this.requireTarget(url).host
    const changed = await db.transaction().execute(async (trx) => {
      const before = await find(trx, by.account_id, id)
      const time = now()
      const { failures, failing_since, slowed_until } = healthy
      const values: Partial<store.WebhookRow> = {
        ...(url !== undefined && { url }),
        ...(events !== undefined && { events_json: JSON.stringify(typesOf(events, before.format)) }),
        // A new URL, or enabling the webhook, resets its failures.
        ...((url !== undefined || disabled === false) && { failures, failing_since, slowed_until }),
        ...(disabled === false && { disabled_at: null, disabled_reason: null }),
        ...(disabled === true &&
          before.disabled_at === null && { disabled_at: time, disabled_reason: 'requested' as const }),
        updated_at: time,
      }
      await store.updateWebhook(trx, id, values)
      await recordAuditEntry(trx, by, 'webhook.changed', id, { host, events, disabled }, time)
      return { ...before, ...values }
    })
    this.deliverer.wake()
    return toWebhookResponse(changed, now())
  }

  async delete(by: AccountActor, id: string): Promise<{ id: string; deleted: true }> {
    const { db, now } = this.options
    await db.transaction().execute(async (trx) => {
      const { url } = await find(trx, by.account_id, id)
      await store.deleteWebhook(trx, id)
      await recordAuditEntry(trx, by, 'webhook.deleted', id, { host: new URL(url).host }, now())
    })
    return { id, deleted: true }
  }

  /** Adds a new secret; the earlier ones stay active for the overlap. */
  async rotate(by: AccountActor, id: string, request: z.output<typeof rotateSecret.body>): Promise<NewWebhook> {
    const { db, secrets, now } = this.options
    const { secret, overlap_hours } = request ?? { overlap_hours: 24 }
    const used = requireSecret(secret)
    const row = await db.transaction().execute(async (trx) => {
      const before = await find(trx, by.account_id, id)
      const time = now()
      const until = time + overlap_hours * hour_ms
      const old =
        overlap_hours === 0
          ? []
          : activeSecrets(before, time).map((secret) => ({ ...secret, expires_at: secret.expires_at ?? until }))
      if (old.length >= secretsMax)
        throw new ApiError(
          'too_many',
          `${secretsMax} secrets of this webhook are in force. Wait until one ends, or rotate with ` +
            '"overlap_hours": 0.',
        )
      const secrets_json = JSON.stringify([...old, { sealed: secrets.encrypt(used, id), expires_at: null }])
      await store.updateWebhook(trx, id, { secrets_json, updated_at: time })
      await recordAuditEntry(trx, by, 'webhook.secret_rotated', id, { overlap_hours }, time)
      return { ...before, secrets_json, updated_at: time }
    })
    return { ...toWebhookResponse(row, now()), ...(secret === undefined && { secret: used }) }
  }

  async test(by: AccountActor, id: string): Promise<Delivery> {
    const { db, now } = this.options
    const { webhook, row } = await db.transaction().execute(async (trx) => {
      const webhook = await find(trx, by.account_id, id)
      const event = await insertEvent(trx, by.account_id, 'webhook.test', { webhook_id: id }, now())
      await recordAuditEntry(trx, by, 'webhook.tested', id, { event_id: event.id }, now())
      return { webhook, row: await this.enqueue(trx, id, event) }
    })
    this.deliverer.wake()
    return toDeliveryResponse(row, webhook, undefined)
  }

  async deliveries(account_id: string, id: string, { limit, after }: ListQuery): Promise<Page<Delivery>> {
    const { db } = this.options
    const webhook = await find(db, account_id, id)
    const last = after ? await this.findDelivery(db, id, after) : undefined
    const rows = await store.listDeliveries(db, id, limit, last)
    const attempts = new Map((await store.lastAttempts(db, rows)).map((attempt) => [attempt.delivery_id, attempt]))
    return pageOf(
      rows.map((row) => toDeliveryResponse(row, webhook, attempts.get(row.id))),
      limit,
    )
  }

  async delivery(account_id: string, id: string, delivery_id: string): Promise<DeliveryDetails> {
    const { db } = this.options
    const webhook = await find(db, account_id, id)
    const row = await this.findDelivery(db, id, delivery_id)
    const attempts = await store.attempts(db, delivery_id)
    const payload = payloadOf(await store.findEventUnscoped(db, row.event_id), webhook.format)
    return { ...toDeliveryResponse(row, webhook, attempts.at(-1)), payload, attempts: attempts.map(toAttemptResponse) }
  }

  async redeliver(by: AccountActor, id: string, delivery_id: string): Promise<Delivery> {
    const { db, now } = this.options
    const { webhook, row } = await db.transaction().execute(async (trx) => {
      const webhook = await find(trx, by.account_id, id)
      const { event_id, account_id, type } = await this.findDelivery(trx, id, delivery_id)
      if (webhook.disabled_at !== null)
        throw new ApiError(
          'invalid_request',
          `The webhook is disabled. Enable it first: PUT /v1/webhooks/${id} with {"disabled": false}.`,
        )
      await recordAuditEntry(trx, by, 'webhook.redelivered', id, { delivery_id, event_id }, now())
      return { webhook, row: await this.enqueue(trx, id, { id: event_id, account_id, type }) }
    })
    this.deliverer.wake()
    return toDeliveryResponse(row, webhook, undefined)
  }

  /** Releases all leases. Only for a process with exclusive ownership of the database: the lease holders are gone. */
  async releaseAllLeases(): Promise<void> {
    await store.releaseAllLeases(this.options.db)
  }

  private async findDelivery(trx: Queryable, webhook_id: string, id: string): Promise<store.DeliveryRow> {
    const row = await store.findDelivery(trx, webhook_id, id)
    if (!row) throw new ApiError('delivery_not_found', `There is no delivery '${id}' of this webhook.`)
    return row
  }

  private requireTarget(url: string): URL {
    try {
      return readTarget(url, this.options.rules).url
    } catch (error) {
      if (!(error instanceof BadTarget)) throw error
      throw new ApiError(
        error.blocked ? 'address_blocked' : 'invalid_request',
        `'url': ${error.message}. Give an address of the public internet.`,
        { param: 'url', details: { field: 'url' } },
      )
    }
  }

  /** Inserts a delivery of an event, due at once. */
  private async enqueue(
    trx: Trx,
    webhook_id: string,
    event: { id: string; account_id: string; type: string },
  ): Promise<store.DeliveryRow> {
    const row = newDelivery(webhook_id, event, this.options.now())
    await store.insertDelivery(trx, row)
    return row
  }
}

async function find(trx: Queryable, account_id: string, id: string): Promise<store.WebhookRow> {
  const row = await store.findWebhook(trx, account_id, id)
  if (!row) throw new ApiError('webhook_not_found', `There is no webhook '${id}'.`)
  return row
}

function requireSecret(requested: string | undefined): string {
  const problem = requested === undefined ? undefined : secretProblem(requested)
  if (problem)
    throw new ApiError('invalid_request', `'secret': it ${problem}.`, { param: 'secret', details: { field: 'secret' } })
  return requested ?? newSecret()
}
