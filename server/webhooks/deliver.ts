// Sends what is due. Each delivery is claimed with a lease in the database and tried by one process at a time; whoever
// dies in the middle of a try leaves a lease that runs out, and it is tried again: at least once, never at most once.
import { EventEmitter, once } from 'node:events'
import type { Logger } from 'pino'
import type { Db } from '../db/open.ts'
import { recordAct, theService } from '../events/audit.ts'
import type { Secrets } from '../storage/secrets.ts'
import { payloadOf, secretsInForce } from './payload.ts'
import { afterFailure, healthy, pauseAfter } from './schedule.ts'
import type { Outcome, Send } from './send.ts'
import { signatureHeaders } from './signature.ts'
import * as store from './store.ts'

export interface Delivering {
  /** Takes no more; gives tries under way a moment to end, and the others back to be tried again. */
  stop(): Promise<void>
}

export interface Deliverer {
  start(): Delivering
  /** Something is due now; without this it is seen within a second. */
  wake(): void
}

interface Options {
  db: Db
  secrets: Secrets
  send: Send
  version: string
  log: Logger
  now(): number
}

/**
 * The most tries of this process at once, and of those the most to webhooks whose last try failed: who lets them hang
 * leaves room for others.
 */
const atOnce = 256
const toFailing = 128
/** Longer than a try can take. */
export const lease_ms = 30_000
/** How soon what another part of the service has recorded is seen. */
const poll_ms = 1000
const grace_ms = 1000

export function createDeliverer({ db, secrets, send, version, log, now }: Options): Deliverer {
  const bell = new EventEmitter()
  const wake = () => void bell.emit('wake')

  async function attempt(claimed: store.DeliveryRow, signal: AbortSignal): Promise<void> {
    const { id, account_id, webhook_id, event_id } = claimed
    const webhook = await store.webhook(db, account_id, webhook_id)
    if (!webhook) return
    const body = payloadOf(await store.event(db, event_id))
    const began = now()
    const headers = {
      'content-type': 'application/json',
      'user-agent': `Tunery/${version}`,
      ...signatureHeaders(secretsInForce(webhook, secrets, began), event_id, body, began),
    }
    let outcome: Outcome
    try {
      outcome = await send(webhook.url, headers, body, signal)
    } catch (error) {
      if (!signal.aborted) throw error
      await db.transaction().execute((trx) => store.settle(trx, claimed, {}))
      return
    }
    const disabled = await settle(claimed, began, outcome)
    const { response_status, duration_ms, error } = outcome
    log.info(
      {
        delivery: id,
        webhook: webhook_id,
        attempt: claimed.attempts + 1,
        response_status,
        duration_ms,
        error: error?.code,
      },
      'a webhook was sent',
    )
    if (disabled) log.warn({ webhook: webhook_id, account: account_id, reason: disabled }, 'a webhook was disabled')
  }

  /** Records how a try went and what follows. Returns why the webhook was disabled by it, if it was. */
  async function settle(claimed: store.DeliveryRow, started_at: number, outcome: Outcome): Promise<string | undefined> {
    const { account_id, webhook_id } = claimed
    const { duration_ms, response_status, response_body, error } = outcome
    return db.transaction().execute(async (trx) => {
      const time = now()
      const number = claimed.attempts + 1
      const pause =
        claimed.type === 'webhook.test' || error?.code === 'blocked_address' ? undefined : pauseAfter(number)
      const next_attempt_at = error && pause !== undefined ? Math.round(time + pause) : null
      const status = !error
        ? 'delivered'
        : error.code === 'blocked_address'
          ? error.code
          : next_attempt_at === null
            ? 'failed'
            : 'pending'
      if (!(await store.settle(trx, claimed, { status, next_attempt_at, attempts: number }))) return undefined
      const error_json = error ? JSON.stringify(error) : null
      await store.insertAttempt(trx, {
        delivery_id: claimed.id,
        number,
        started_at,
        duration_ms,
        response_status,
        response_body,
        error_json,
      })
      const webhook = (await store.webhook(trx, account_id, webhook_id))!
      if (!error) {
        const { failures, failing_since, slowed_until } = healthy
        if (webhook.failures > 0) await store.updateWebhook(trx, webhook_id, { failures, failing_since, slowed_until })
        return undefined
      }
      const health = afterFailure(webhook, response_status, started_at, time)
      await store.updateWebhook(trx, webhook_id, health)
      if (webhook.disabled_at !== null || health.disabled_at === null) return undefined
      const details = {
        reason: health.disabled_reason,
        host: new URL(webhook.url).host,
        failing_since: new Date(health.failing_since!).toISOString(),
      }
      await recordAct(trx, { ...theService, account_id }, 'webhook.disabled', webhook_id, details, time)
      return health.disabled_reason!
    })
  }

  return {
    wake,
    start() {
      const stopping = new AbortController()
      const cutting = new AbortController()
      const running = new Set<Promise<void>>()
      let runningToFailing = 0

      /** Begins with all that is due and has room. */
      async function take(): Promise<void> {
        for (const failing of [false, true])
          for (;;) {
            const limit = Math.min(atOnce - running.size, failing ? toFailing - runningToFailing : atOnce)
            if (limit <= 0 || stopping.signal.aborted) break
            const claimed = await store.claim(db, now(), now() + lease_ms, { failing, limit })
            if (claimed.length === 0) break
            for (const each of claimed) begin(each, failing)
          }
      }

      function begin(claimed: store.DeliveryRow, failing: boolean): void {
        if (failing) runningToFailing++
        const work: Promise<void> = attempt(claimed, cutting.signal)
          // Its lease runs out, and it is tried again.
          .catch((error: Error) => log.error({ err: error, delivery: claimed.id }, 'a webhook could not be sent'))
          .finally(() => {
            running.delete(work)
            if (failing) runningToFailing--
            wake()
          })
        running.add(work)
      }

      async function loop(): Promise<void> {
        while (!stopping.signal.aborted) {
          const woken = once(bell, 'wake', {
            signal: AbortSignal.any([stopping.signal, AbortSignal.timeout(poll_ms)]),
          }).catch(() => {})
          await take().catch((error: Error) => log.error({ err: error }, 'claiming deliveries of webhooks failed'))
          await woken
        }
      }

      const looping = loop()
      return {
        async stop() {
          stopping.abort()
          await looping
          const cut = setTimeout(() => cutting.abort(), grace_ms)
          await Promise.all(running)
          clearTimeout(cut)
        },
      }
    },
  }
}
