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
import { createAbortSignals } from '../../platform/queue/worker.ts'
import { requireFreeDisk } from '../../platform/storage/free-disk.ts'
import type { EventBus } from '../events.ts'
import type { Hub } from './service.ts'
import * as store from './store.ts'

export const queueKind = 'model_download'

/** What a worker does with its queue entry. */
type QueueOutcome = 'done' | 'dead' | { retry_at: number }

export interface Downloads {
  /**
   * Whether a base must be downloaded first and can be: a download is in progress, or the caller may start one. Throws
   * storage_full.
   */
  needsDownload(by: AccountActor, model_id: string): Promise<boolean>
  /** Joins the download in progress, or queues one. Call `publishRequest` after the commit. */
  request(trx: Trx, by: AccountActor, model_id: string): Promise<void>
  /** Publishes the state of a requested download and wakes the worker. */
  publishRequest(model_id: string): Promise<void>
  /** Throws model_not_found, storage_full, and model_not_available if the caller may not start it. */
  start(by: AccountActor, model_id: string): Promise<Model>
  cancel(by: AccountActor, model_id: string): Promise<Model>
  isLive(model_id: string): boolean
  /** Loads the states from the database when the service starts. */
  load(): Promise<void>
  /** For the worker: returns a signal that aborts when the download is cancelled, until `stopWorking`. */
  startWorking(model_id: string): AbortSignal
  stopWorking(model_id: string): void
  row(model_id: string): Promise<store.DownloadRow | undefined>
  /** For the worker: changes the download if it still has the lease. */
  save(claim: Claim, values: Partial<store.DownloadRow>, end?: QueueOutcome): Promise<void>
}

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

export function createDownloads({
  db,
  queue,
  notifications,
  events,
  hub,
  states,
  modelsDir,
  policy,
  min_free_mb,
  log,
  now = Date.now,
}: Options): Downloads {
  notifications.on('download', (id) => {
    const refreshing = id === undefined ? load() : refresh(id)
    refreshing.catch((error) => log.warn({ err: error }, 'the state of a download could not be read'))
  })
  const workers = createAbortSignals(notifications)

  const isOperator = (by: AccountActor) => by.scopes?.includes('operator') ?? false
  const mayStart = (by: AccountActor) => policy === 'any' || (policy === 'operator' && isOperator(by))
  const isLive = (id: string) => liveStatuses.has(states.get(id)?.status ?? '')

  /** Requires space for the weights, and as much again for the GGUF file. */
  async function requireDiskSpace(id: string): Promise<void> {
    const size_mb = hub.downloadable(id)?.size_mb ?? 0
    await mkdir(modelsDir, { recursive: true })
    await requireFreeDisk(modelsDir, min_free_mb + 2 * size_mb)
  }

  async function load(): Promise<void> {
    for (const row of await store.listAll(db)) states.set(row.model_id, toResponse(row))
  }

  async function refresh(id: string): Promise<void> {
    const row = await store.find(db, id)
    if (row) states.set(id, toResponse(row))
  }

  /** Runs `write` and the listeners in one transaction; updates the visible state after the commit. */
  async function change(id: string, write: (trx: Trx) => Promise<void>): Promise<void> {
    const { download, follow } = await db.transaction().execute(async (trx) => {
      await write(trx)
      const download = toResponse((await store.find(trx, id))!)
      return { download, follow: await events.emit(trx, 'download.changed', { model_id: id, download }) }
    })
    notifications.publish('download', id)
    states.set(id, download)
    follow()
  }

  async function request(trx: Trx, by: AccountActor, id: string): Promise<void> {
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

  async function publishRequest(id: string): Promise<void> {
    await refresh(id)
    notifications.publish('download', id)
    queue.wake()
  }

  return {
    isLive,
    request,
    publishRequest,
    row: (id) => store.find(db, id),

    async needsDownload(by, id) {
      if (hub.localOrUndefined(id) || !hub.downloadable(id)) return false
      if (isLive(id)) return true
      if (!mayStart(by)) return false
      await requireDiskSpace(id)
      return true
    },

    async start(by, id) {
      if (hub.get(id).weights.available) return hub.get(id)
      if (!hub.downloadable(id) || !(mayStart(by) || isLive(id))) hub.local(id)
      if (!isLive(id)) await requireDiskSpace(id)
      await db.transaction().execute((trx) => request(trx, by, id))
      await publishRequest(id)
      return hub.get(id)
    },

    async cancel(by, id) {
      hub.get(id)
      let worker_active = false
      await change(id, async (trx) => {
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
      if (worker_active) workers.abort(id)
      else await rm(downloadFolder(modelsDir, id), { recursive: true, force: true })
      return hub.get(id)
    },

    load,

    startWorking: workers.get,
    stopWorking: workers.clear,

    save: (claim, values, end) =>
      change(claim.ref, async (trx) => {
        await queue.assertLease(trx, claim)
        await store.update(trx, claim.ref, { ...values, updated_at: now() })
        if (end === 'done' || end === 'dead') await queue.finish(trx, claim, end)
        else if (end) await queue.requeue(trx, claim, end.retry_at)
      }),
  }
}
