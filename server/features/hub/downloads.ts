// Downloads of base models: permissions, requests, and state. The worker is in jobs.ts.

import { mkdir, rm } from 'node:fs/promises'
import path from 'node:path'
import type { Logger } from 'pino'
import { ApiError } from '../../../contract/errors.ts'
import type { Download, Model } from '../../../contract/hub.ts'
import type { Config } from '../../config.ts'
import type { Notifications } from '../../platform/cluster/notifications.ts'
import { fromJson } from '../../platform/db/json.ts'
import type { Db, Trx } from '../../platform/db/open.ts'
import { type AccountActor, recordAuditEntry } from '../../platform/events/audit.ts'
import type { Claim, Queue } from '../../platform/queue/queue.ts'
import { type AbortSignals, createAbortSignals } from '../../platform/queue/worker.ts'
import { requireFreeDisk } from '../../platform/storage/free-disk.ts'
import type { EventBus } from '../events.ts'
import type { Hub } from './service.ts'
import * as store from './store.ts'

export const queueKind = 'model_download'

/** What a worker does with its queue entry. */
type QueueOutcome = 'done' | 'dead' | { retry_at: number }

interface Options {
  db: Db
  queue: Queue
  notifications: Notifications
  events: EventBus
  hub: Hub
  /** The states that `hub` shows; updated here. */
  states: Map<string, Download>
  modelsDir: string
  policy: Config['model_downloads']
  min_free_mb: number
  log: Logger
  now?: () => number
}

const liveStatuses = new Set<string>(['queued', 'downloading', 'converting'])

/** The folder of an unfinished download. It is nested too deep to be listed as a model. */
export const downloadFolder = (modelsDir: string, model_id: string) => path.join(modelsDir, '.downloads', model_id)

const toResponse = ({ status, bytes, total_bytes, error_json }: store.DownloadRow): Download => ({
  status,
  progress: status === 'completed' ? 1 : total_bytes ? bytes / total_bytes : 0,
  bytes,
  total_bytes,
  error: fromJson(error_json),
})

export class Downloads {
  private readonly options: Options & { now(): number }
  private readonly workers: AbortSignals

  constructor(options: Options) {
    this.options = { now: Date.now, ...options }
    const { notifications, log } = options
    notifications.on('download', (id) => {
      const refreshing = id === undefined ? this.load() : this.refresh(id)
      refreshing.catch((error) => log.warn({ err: error }, 'the state of a download could not be read'))
    })
    this.workers = createAbortSignals(notifications)
  }

  isLive(id: string): boolean {
    const { states } = this.options
    return liveStatuses.has(states.get(id)?.status ?? '')
  }

  /** Joins the download in progress, or queues one. Call `publishRequest` after the commit. */
  async request(trx: Trx, by: AccountActor, id: string): Promise<void> {
    const { queue, now } = this.options
    const before = await store.find(trx, id)
    const { account_id } = by
    const time = now()
    if (before && liveStatuses.has(before.status)) {
      if (before.account_id !== account_id) await store.update(trx, id, { shared: 1 })
      return
    }
    // Resume a failed download: its files belong to its revision.
    const failed = before?.status === 'failed' ? before : undefined
    await store.upsert(trx, {
      model_id: id,
      status: 'queued',
      revision: failed?.revision ?? null,
      bytes: failed?.bytes ?? 0,
      total_bytes: failed?.total_bytes ?? null,
      failures: 0,
      error_json: null,
      account_id,
      shared: 0,
      created_at: time,
      updated_at: time,
    })
    await queue.enqueue(trx, queueKind, id, account_id)
    // The download is not the resource that a request with an Idempotency-Key creates.
    const { idempotency: _, ...actor } = by
    await recordAuditEntry(trx, actor, 'download.started', id, {}, time)
  }

  /** Publishes the state of a requested download and wakes the worker. */
  async publishRequest(id: string): Promise<void> {
    const { queue, notifications } = this.options
    await this.refresh(id)
    notifications.publish('download', id)
    queue.wake()
  }

  row(id: string): Promise<store.DownloadRow | undefined> {
    const { db } = this.options
    return store.find(db, id)
  }

  /**
   * Whether a base must be downloaded first and can be: a download is in progress, or the caller may start one. Throws
   * storage_full.
   */
  async needsDownload(by: AccountActor, id: string): Promise<boolean> {
    const { hub } = this.options
    if (hub.localOrUndefined(id) || !hub.downloadable(id)) return false
    if (this.isLive(id)) return true
    if (!this.mayStart(by)) return false
    await this.requireDiskSpace(id)
    return true
  }

  /** Throws model_not_found, storage_full, and model_not_available if the caller may not start it. */
  async start(by: AccountActor, id: string): Promise<Model> {
    const { db, hub } = this.options
    if (hub.get(id).weights.available) return hub.get(id)
    if (!hub.downloadable(id) || !(this.mayStart(by) || this.isLive(id))) hub.local(id)
    if (!this.isLive(id)) await this.requireDiskSpace(id)
    await db.transaction().execute((trx) => this.request(trx, by, id))
    await this.publishRequest(id)
    return hub.get(id)
  }

  async cancel(by: AccountActor, id: string): Promise<Model> {
    const { queue, hub, modelsDir, policy, now } = this.options
    hub.get(id)
    let worker_active = false
    await this.change(id, async (trx) => {
      const row = await store.find(trx, id)
      if (!row || row.status === 'completed')
        throw new ApiError('invalid_request', `There is no download of '${id}' to cancel.`, { param: 'model_id' })
      if (!isOperator(by) && (policy !== 'any' || row.account_id !== by.account_id || row.shared))
        throw new ApiError(
          'insufficient_permissions',
          `Only a key with the scope 'operator' may cancel this download: others wait for it.`,
          { details: { scope: 'operator' } },
        )
      if (row.status === 'cancelled') return
      await store.update(trx, id, {
        status: 'cancelled',
        revision: null,
        bytes: 0,
        error_json: null,
        updated_at: now(),
      })
      worker_active = (await queue.cancel(trx, queueKind, id)) !== undefined
      await recordAuditEntry(trx, by, 'download.cancelled', id, {}, now())
    })
    // An active worker removes the files itself after it has stopped writing.
    if (worker_active) this.workers.abort(id)
    else await rm(downloadFolder(modelsDir, id), { recursive: true, force: true })
    return hub.get(id)
  }

  /** Loads the states from the database when the service starts. */
  async load(): Promise<void> {
    const { db, states } = this.options
    for (const row of await store.listAll(db)) states.set(row.model_id, toResponse(row))
  }

  /** For the worker: returns a signal that aborts when the download is cancelled, until `stopWorking`. */
  startWorking(id: string): AbortSignal {
    return this.workers.get(id)
  }

  stopWorking(id: string): void {
    this.workers.clear(id)
  }

  /** For the worker: changes the download if it still has the lease. */
  save(claim: Claim, values: Partial<store.DownloadRow>, end?: QueueOutcome): Promise<void> {
    const { queue, now } = this.options
    return this.change(claim.ref, async (trx) => {
      await queue.assertLease(trx, claim)
      await store.update(trx, claim.ref, { ...values, updated_at: now() })
      if (end === 'done' || end === 'dead') await queue.finish(trx, claim, end)
      else if (end) await queue.requeue(trx, claim, end.retry_at)
    })
  }

  private mayStart(by: AccountActor): boolean {
    const { policy } = this.options
    return policy === 'any' || (policy === 'operator' && isOperator(by))
  }

  /** Requires space for the weights, and as much again for the GGUF file. */
  private async requireDiskSpace(id: string): Promise<void> {
    const { hub, modelsDir, min_free_mb } = this.options
    const size_mb = hub.downloadable(id)?.size_mb ?? 0
    await mkdir(modelsDir, { recursive: true })
    await requireFreeDisk(modelsDir, min_free_mb + 2 * size_mb)
  }

  private async refresh(id: string): Promise<void> {
    const { db, states } = this.options
    const row = await store.find(db, id)
    if (row) states.set(id, toResponse(row))
  }

  /** Runs `write` and the listeners in one transaction; updates the visible state after the commit. */
  private async change(id: string, write: (trx: Trx) => Promise<void>): Promise<void> {
    const { db, notifications, events, states } = this.options
    const { download, follow } = await db.transaction().execute(async (trx) => {
      await write(trx)
      const download = toResponse((await store.find(trx, id))!)
      return { download, follow: await events.emit(trx, 'download.changed', { model_id: id, download }) }
    })
    notifications.publish('download', id)
    states.set(id, download)
    follow()
  }
}

const isOperator = (by: AccountActor) => by.scopes?.includes('operator') ?? false
