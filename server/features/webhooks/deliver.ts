// Sends deliveries that are due, at least once. Each is claimed with a lease in the database, so that one process at a
// time attempts it. If a process dies during an attempt, the lease expires and the delivery is retried.
import { EventEmitter } from 'node:events'
import type { Logger } from 'pino'
import { isoTime } from '../../../lib/utc-day.ts'
import type { Db } from '../../platform/db/open.ts'
import { recordAuditEntry, serviceActor } from '../../platform/events/audit.ts'
import { signatureHeaders } from '../../platform/outbound/signature.ts'
import type { Secrets } from '../../platform/storage/secrets.ts'
import type { ServerMetrics } from '../../platform/telemetry/metrics.ts'
import { payloadOf } from './format.ts'
import { afterFailure, backoffAfter, healthy } from './schedule.ts'
import { signingSecrets } from './secrets.ts'
import type { Outcome, Send } from './send.ts'
import * as store from './store.ts'

interface RunningDeliverer {
  /** Stops claiming, gives running attempts a moment to end, and releases the leases of the rest. */
  close(): Promise<void>
}

interface Options {
  db: Db
  secrets: Secrets
  send: Send
  version: string
  log: Logger
  metrics: ServerMetrics
  now(): number
}

/** The most concurrent attempts, and of these the most to failing webhooks, so that slow receivers leave capacity. */
const maxConcurrent = 256
const maxConcurrentFailing = 128
/** Longer than the longest attempt. */
export const lease_ms = 30_000
/** The polling interval for deliveries that were recorded without `wake`. */
const poll_ms = 1000
const grace_ms = 1000
/** For the metrics, by the status of the delivery after an attempt. */
const outcomes = { delivered: 'delivered', pending: 'retried', failed: 'failed', blocked_address: 'blocked' } as const

export class Deliverer {
  private readonly options: Options
  private readonly wakeEvents = new EventEmitter()
  private stopping = new AbortController()
  private aborting = new AbortController()
  private readonly running = new Set<Promise<void>>()
  private runningFailing = 0

  constructor(options: Options) {
    this.options = options
  }

  /** Looks for due deliveries now. Without a call they are found within a second. */
  wake(): void {
    this.wakeEvents.emit('wake')
  }

  /** Call it once, and again when it is closed. */
  start(): RunningDeliverer {
    const { stopping, aborting } = this
    const looping = this.loop()
    const close = async () => {
      stopping.abort()
      await looping
      const cut = setTimeout(() => aborting.abort(), grace_ms)
      await Promise.all(this.running)
      clearTimeout(cut)
      this.stopping = new AbortController()
      this.aborting = new AbortController()
    }
    return { close }
  }

  private async loop(): Promise<void> {
    const { log } = this.options
    while (!this.stopping.signal.aborted) {
      const woken = this.woken()
      await this.claimDue().catch((error: Error) => log.error({ err: error }, 'claiming webhook deliveries failed'))
      await woken
    }
  }

  /** Resolves at the next `wake`, at the stop, or when it is time to look again. */
  private woken(): Promise<void> {
    const { signal } = this.stopping
    return new Promise((resolve) => {
      const done = () => {
        clearTimeout(timer)
        this.wakeEvents.off('wake', done)
        signal.removeEventListener('abort', done)
        resolve()
      }
      const timer = setTimeout(done, poll_ms).unref()
      this.wakeEvents.once('wake', done)
      signal.addEventListener('abort', done, { once: true })
      if (signal.aborted) done()
    })
  }

  /** Claims and starts due deliveries up to the concurrency limits. */
  private async claimDue(): Promise<void> {
    const { db, now } = this.options
    // Most of the time nothing is due: a look takes no turn to write.
    if (!(await store.hasDue(db, now()))) return
    for (const failing of [false, true])
      for (;;) {
        const limit = Math.min(
          maxConcurrent - this.running.size,
          failing ? maxConcurrentFailing - this.runningFailing : maxConcurrent,
        )
        if (limit <= 0 || this.stopping.signal.aborted) break
        const claimed = await store.claim(db, now(), now() + lease_ms, { failing, limit })
        if (claimed.length === 0) break
        for (const delivery of claimed) this.startAttempt(delivery, failing)
      }
  }

  private startAttempt(claimed: store.DeliveryRow, failing: boolean): void {
    if (failing) this.runningFailing++
    const work: Promise<void> = this.attempt(claimed)
      // The delivery is retried when its lease expires.
      .catch((error: Error) =>
        this.options.log.error({ err: error, delivery: claimed.id }, 'a webhook could not be sent'),
      )
      .finally(() => {
        this.running.delete(work)
        if (failing) this.runningFailing--
        this.wake()
      })
    this.running.add(work)
  }

  private async attempt(claimed: store.DeliveryRow): Promise<void> {
    const { signal } = this.aborting
    const { db, secrets, send, version, log, metrics, now } = this.options
    const { id, account_id, webhook_id, event_id } = claimed
    const webhook = await store.findWebhook(db, account_id, webhook_id)
    if (!webhook) return
    const body = payloadOf(await store.findEventUnscoped(db, event_id), webhook.format)
    const began = now()
    const headers = {
      'content-type': 'application/json',
      'user-agent': `Tunery/${version}`,
      ...signatureHeaders(signingSecrets(webhook, secrets, began), event_id, body, began),
    }
    let outcome: Outcome
    try {
      outcome = await send(webhook.url, headers, body, signal)
    } catch (error) {
      if (!signal.aborted) throw error
      await db.transaction().execute((trx) => store.settle(trx, claimed, {}))
      return
    }
    const { status, disabled } = await this.settle(claimed, began, outcome)
    const { response_status, duration_ms, error } = outcome
    if (status) metrics.webhookAttempts.inc({ outcome: outcomes[status] })
    metrics.webhookSeconds.observe(duration_ms / 1000)
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

  /**
   * Records the outcome of an attempt, unless its lease was lost. `disabled`: the reason, if it disabled the webhook.
   */
  private async settle(
    claimed: store.DeliveryRow,
    started_at: number,
    outcome: Outcome,
  ): Promise<{ status?: keyof typeof outcomes; disabled?: string }> {
    const { db, now } = this.options
    const { account_id, webhook_id } = claimed
    const { duration_ms, response_status, response_body, error } = outcome
    return db.transaction().execute(async (trx) => {
      const time = now()
      const number = claimed.attempts + 1
      const backoff_ms =
        claimed.type === 'webhook.test' || error?.code === 'blocked_address' ? undefined : backoffAfter(number)
      const next_attempt_at = error && backoff_ms !== undefined ? Math.round(time + backoff_ms) : null
      const status = !error
        ? 'delivered'
        : error.code === 'blocked_address'
          ? error.code
          : next_attempt_at === null
            ? 'failed'
            : 'pending'
      if (!(await store.settle(trx, claimed, { status, next_attempt_at, attempts: number }))) return {}
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
      const webhook = (await store.findWebhook(trx, account_id, webhook_id))!
      if (!error) {
        const { failures, failing_since, slowed_until } = healthy
        if (webhook.failures > 0) await store.updateWebhook(trx, webhook_id, { failures, failing_since, slowed_until })
        return { status }
      }
      const health = afterFailure(webhook, response_status, started_at, time)
      await store.updateWebhook(trx, webhook_id, health)
      if (webhook.disabled_at !== null || health.disabled_at === null) return { status }
      const details = {
        reason: health.disabled_reason,
        host: new URL(webhook.url).host,
        failing_since: isoTime(health.failing_since!),
      }
      await recordAuditEntry(trx, { ...serviceActor, account_id }, 'webhook.disabled', webhook_id, details, time)
      return { status, disabled: health.disabled_reason! }
    })
  }
}
