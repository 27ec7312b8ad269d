// Downloads of base models: who may start them, and what is told of them. The work itself is in jobs.ts.
import { mkdir, rm } from 'node:fs/promises'
import path from 'node:path'
import { ApiError } from '../../contract/errors.ts'
import type { Download, Model } from '../../contract/hub.ts'
import type { Config } from '../config.ts'
import type { Db, Trx } from '../db/open.ts'
import { type By, recordAct } from '../events/audit.ts'
import type { Claim, Queue } from '../queue/queue.ts'
import { requireFreeDisk } from '../storage/durable-files.ts'
import type { Hub } from './service.ts'
import * as store from './store.ts'

export const queueKind = 'model_download'

/** A change of a download, in its transaction; what is returned is called when it has committed. */
type Listener = (trx: Trx, model_id: string, download: Download) => Promise<() => void>

/** How a worker leaves the entry of the queue. */
type End = 'done' | 'dead' | { again_at: number }

export interface Downloads {
  /**
   * Whether a base has to be downloaded first, and may be: a download is under way, or the caller may start one. Throws
   * storage_full where there is no room for it.
   */
  needed(by: By, model_id: string): Promise<boolean>
  /** Joins the download that is under way, or queues one. Call `started` after the transaction has committed. */
  request(trx: Trx, by: By, model_id: string): Promise<void>
  started(model_id: string): Promise<void>
  /** Throws model_not_found, storage_full, and model_not_available where the caller may not start it. */
  start(by: By, model_id: string): Promise<Model>
  cancel(by: By, model_id: string): Promise<Model>
  isLive(model_id: string): boolean
  onChange(listener: Listener): void
  /** Reads what the database knows, when the service starts. */
  load(): Promise<void>
  /** For the worker: aborts when the download is cancelled, until `stopped`. */
  running(model_id: string): AbortSignal
  stopped(model_id: string): void
  row(model_id: string): Promise<store.DownloadRow | undefined>
  /** For the worker: changes the download under its claim. */
  save(claim: Claim, values: Partial<store.DownloadRow>, end?: End): Promise<void>
}

interface Options {
  db: Db
  queue: Queue
  hub: Hub
  /** What `hub` tells of downloads; kept up to date here. */
  states: Map<string, Download>
  modelsDir: string
  policy: Config['model_downloads']
  min_free_mb: number
  now?: () => number
}

const live = new Set<string>(['queued', 'downloading', 'converting'])

/** Where a download lies until it is a model: too deep to be taken for one. */
export const downloadFolder = (modelsDir: string, model_id: string) => path.join(modelsDir, '.downloads', model_id)

const toDownload = ({ status, bytes, total_bytes, error_json }: store.DownloadRow): Download => ({
  status,
  progress: status === 'completed' ? 1 : total_bytes ? bytes / total_bytes : 0,
  bytes,
  total_bytes,
  error: error_json ? JSON.parse(error_json) : null,
})

export function createDownloads({
  db,
  queue,
  hub,
  states,
  modelsDir,
  policy,
  min_free_mb,
  now = Date.now,
}: Options): Downloads {
  const listeners: Listener[] = []
  const workers = new Map<string, AbortController>()

  const isOperator = (by: By) => by.scopes?.includes('operator') ?? false
  const mayStart = (by: By) => policy === 'any' || (policy === 'operator' && isOperator(by))
  const isLive = (id: string) => live.has(states.get(id)?.status ?? '')

  /** The weights, and about as much again for the form that the engine serves. */
  async function requireRoom(id: string): Promise<void> {
    const size_mb = hub.downloadable(id)?.size_mb ?? 0
    await mkdir(modelsDir, { recursive: true })
    await requireFreeDisk(modelsDir, min_free_mb + 2 * size_mb)
  }

  async function refresh(id: string): Promise<void> {
    const row = await store.find(db, id)
    if (row) states.set(id, toDownload(row))
  }

  /** Runs `write`, then tells the listeners in the same transaction; readers see the change when it has committed. */
  async function change(id: string, write: (trx: Trx) => Promise<void>): Promise<void> {
    const told: (() => void)[] = []
    const download = await db.transaction().execute(async (trx) => {
      await write(trx)
      const download = toDownload((await store.find(trx, id))!)
      for (const listener of listeners) told.push(await listener(trx, id, download))
      return download
    })
    states.set(id, download)
    for (const tell of told) tell()
  }

  async function request(trx: Trx, by: By, id: string): Promise<void> {
    const before = await store.find(trx, id)
    const { account_id } = by
    const time = now()
    if (before && live.has(before.status)) {
      if (before.account_id !== account_id) await store.update(trx, id, { shared: 1 })
      return
    }
    // What a failed download has brought is of its revision.
    const kept = before?.status === 'failed' ? before : undefined
    await store.put(trx, {
      model_id: id,
      status: 'queued',
      revision: kept?.revision ?? null,
      bytes: kept?.bytes ?? 0,
      total_bytes: kept?.total_bytes ?? null,
      failures: 0,
      error_json: null,
      account_id,
      shared: 0,
      created_at: time,
      updated_at: time,
    })
    await queue.enqueue(trx, queueKind, id)
    // It is not what a request with an Idempotency-Key creates.
    const { once: _, ...actor } = by
    await recordAct(trx, actor, 'download.started', id, {}, time)
  }

  async function started(id: string): Promise<void> {
    await refresh(id)
    queue.wake()
  }

  return {
    isLive,
    request,
    started,
    onChange: (listener) => void listeners.push(listener),
    row: (id) => store.find(db, id),

    async needed(by, id) {
      if (hub.localOrUndefined(id) || !hub.downloadable(id)) return false
      if (isLive(id)) return true
      if (!mayStart(by)) return false
      await requireRoom(id)
      return true
    },

    async start(by, id) {
      if (hub.get(id).weights.available) return hub.get(id)
      if (!hub.downloadable(id) || !(mayStart(by) || isLive(id))) hub.local(id)
      if (!isLive(id)) await requireRoom(id)
      await db.transaction().execute((trx) => request(trx, by, id))
      await started(id)
      return hub.get(id)
    },

    async cancel(by, id) {
      hub.get(id)
      let worked = false
      await change(id, async (trx) => {
        const row = await store.find(trx, id)
        if (!row || row.status === 'completed')
          throw new ApiError('invalid_request', `There is no download of '${id}' to cancel.`, { param: 'model_id' })
        if (!isOperator(by) && (policy !== 'any' || row.account_id !== by.account_id || row.shared))
          throw new ApiError(
            'insufficient_permissions',
            `Only a key with the scope 'operator' may cancel this download: others wait for it.`,
            {
              details: { scope: 'operator' },
            },
          )
        if (row.status === 'cancelled') return
        await store.update(trx, id, {
          status: 'cancelled',
          revision: null,
          bytes: 0,
          error_json: null,
          updated_at: now(),
        })
        worked = (await queue.cancel(trx, queueKind, id)) !== undefined
        await recordAct(trx, by, 'download.cancelled', id, {}, now())
      })
      const worker = workers.get(id)
      // A worker removes the files itself, when nothing writes to them any more.
      if (worked && worker) worker.abort()
      else await rm(downloadFolder(modelsDir, id), { recursive: true, force: true })
      return hub.get(id)
    },

    async load() {
      for (const row of await store.all(db)) states.set(row.model_id, toDownload(row))
    },

    running(id) {
      const worker = new AbortController()
      workers.set(id, worker)
      return worker.signal
    },
    stopped: (id) => void workers.delete(id),

    save: (claim, values, end) =>
      change(claim.ref, async (trx) => {
        await queue.hold(trx, claim)
        await store.update(trx, claim.ref, { ...values, updated_at: now() })
        if (end === 'done' || end === 'dead') await queue.finish(trx, claim, end)
        else if (end) await queue.release(trx, claim, end.again_at)
      }),
  }
}
