import { readdir } from 'node:fs/promises'
import path from 'node:path'
import { ApiError } from '../../contract/errors.ts'
import type { CreateExport, Export, ExportEvent, ExportQuery } from '../../contract/exports.ts'
import { newId } from '../../lib/ids.ts'
import { nowAndThen } from '../../lib/periodic.ts'
import type { Db, Trx } from '../db/open.ts'
import type { Deployments } from '../deployments/service.ts'
import { type By, recordAct } from '../events/audit.ts'
import { createNews, follow, statusEvent } from '../events/event-streams.ts'
import type { TunedModels } from '../fine-tuning/models/registry.ts'
import { type Queue, requireTurn } from '../queue/queue.ts'
import type { Reserve } from '../storage/disk-space.ts'
import { requireFreeDisk } from '../storage/durable-files.ts'
import { choose } from './choice.ts'
import type { Downloadable } from './download.ts'
import * as store from './store.ts'
import { exportDir, exportsDir, filesOf, removeDir, toWire } from './store.ts'

export const queueKind = 'export'

export interface Exports {
  create(by: By, request: CreateExport): Promise<Export>
  list(account_id: string, query: ExportQuery): Promise<{ items: Export[]; has_more: boolean }>
  get(account_id: string, id: string): Promise<Export>
  /** One that is being made is cancelled. */
  delete(by: By, id: string): Promise<{ id: string; deleted: true }>
  /**
   * The events after `seq`, then new ones as they come, until it has ended or the signal aborts; null is a sign of
   * life.
   */
  events(
    account_id: string,
    id: string,
    after: number,
    signal: AbortSignal,
  ): Promise<AsyncGenerator<ExportEvent | null>>
  /** A file of one that is ready, by default the first. Throws export_not_found, export_not_ready. */
  file(account_id: string, id: string, name: string | undefined): Promise<Downloadable>
  changed(id: string): void
  /** Aborts when one was deleted that is being made in this process. */
  deleted(id: string): AbortSignal
  forget(id: string): void
  /** Removes the files of those whose time is over; their records stay for a while. */
  expire(): Promise<void>
  /** Expires now and then, until what it returns is closed. */
  start(): { close(): Promise<void> }
  /** Removes what a crash left behind: folders of what never became ready, or is not there any more. */
  sweep(): Promise<void>
}

interface Options {
  db: Db
  queue: Queue
  models: TunedModels
  deployments: Deployments
  reserve: Reserve
  dataDir: string
  min_free_mb: number
  /** How many of an account may wait for their turn. */
  max_waiting: number
  /** Whether there is a token with which the hub takes files. */
  canPush: boolean
  keepalive_ms?: number
  now?: () => number
  onExpiryFailure(error: unknown): void
}

const expiry_ms = 60_000

export function createExports(options: Options): Exports {
  const {
    db,
    queue,
    models,
    deployments,
    reserve,
    dataDir,
    min_free_mb,
    max_waiting,
    canPush,
    keepalive_ms = 15_000,
    now = Date.now,
    onExpiryFailure,
  } = options
  const news = createNews()
  const making = new Map<string, AbortController>()

  models.onNeeded(async (trx, account_id, model_id) => {
    const live = await store.liveOfModel(trx, account_id, model_id)
    return live && `the export ${live.id}`
  })

  async function row(account_id: string, id: string, from: Db | Trx = db): Promise<store.ExportRow> {
    const found = await store.find(from, account_id, id)
    if (!found) throw new ApiError('export_not_found', `There is no export '${id}'.`)
    return found
  }

  /** The model that a caller means by its id, or by the name of a deployment that serves it. */
  async function modelOf(account_id: string, name: string) {
    const found = await models.taken(account_id, name)
    if (found) return found
    const deployment = await deployments.get(account_id, name).catch((error) => {
      if (error instanceof ApiError) return undefined
      throw error
    })
    const deployed = deployment && (await models.taken(account_id, deployment.model))
    if (deployed) return deployed
    if (deployment)
      throw new ApiError(
        'invalid_request',
        `'${name}' serves the base '${deployment.model}', which was not trained here; take it from where it came.`,
        {
          details: { field: 'model' },
        },
      )
    throw new ApiError(
      'model_not_found',
      `There is no tuned model or deployment '${name}'. GET /v1/fine-tuning/models lists the models.`,
    )
  }

  async function expire(): Promise<void> {
    for (const { id } of await store.due(db, now())) {
      await reserve.use(() =>
        db.transaction().execute(async (trx) => {
          if ((await store.byId(trx, id))?.status !== 'ready') return
          await store.update(trx, id, { status: 'expired' })
          await store.log.append(
            trx,
            id,
            [statusEvent('expired', 'The export has expired; its files are removed.')],
            now(),
          )
        }),
      )
      // What cannot be removed keeps no other from its end.
      await removeDir(exportDir(dataDir, id)).catch(onExpiryFailure)
    }
  }

  return {
    async create(by, request) {
      const { account_id } = by
      const model = await modelOf(account_id, request.model)
      const choice = choose(request, model)
      if (request.push_to && !canPush)
        throw new ApiError(
          'invalid_request',
          "'push_to': this service has no token for the hub. The operator sets one with TUNERY_HUGGINGFACE_TOKEN; until then, download the files.",
          { details: { field: 'push_to' } },
        )
      await requireFreeDisk(dataDir, min_free_mb)
      const id = newId('exp')
      const created_at = now()
      const made = { format: choice.format, quantization: choice.quantization, merge: choice.merge }
      await db.transaction().execute(async (trx) => {
        // Inside the transaction, so that the model cannot be deleted in between.
        await models.require(trx, account_id, model.id)
        requireTurn(await store.waiting(trx, account_id), max_waiting, 'exports')
        await store.insert(trx, {
          ...choice,
          id,
          account_id,
          model_id: model.id,
          merge: choice.merge ? 1 : 0,
          push_to: request.push_to ?? null,
          status: 'queued',
          stage: null,
          progress: 0,
          files_json: '[]',
          check_json: null,
          push_json: null,
          error_json: null,
          crashes: 0,
          interruptions: 0,
          created_at,
          started_at: null,
          finished_at: null,
          expires_at: null,
        })
        await store.log.append(trx, id, [statusEvent('queued', 'The export waits for its turn.')], created_at)
        await queue.enqueue(trx, queueKind, id)
        await recordAct(
          trx,
          by,
          'export.created',
          id,
          { model_id: model.id, ...made, ...(request.push_to && { push_to: request.push_to }) },
          created_at,
        )
      })
      queue.wake()
      return toWire(await row(account_id, id))
    },

    async list(account_id, query) {
      const { limit, after } = query
      const rows = await store.list(db, account_id, query, after ? await row(account_id, after) : undefined)
      return { items: rows.slice(0, limit).map(toWire), has_more: rows.length > limit }
    },

    get: async (account_id, id) => toWire(await row(account_id, id)),

    async delete(by, id) {
      const { account_id } = by
      await db.transaction().execute(async (trx) => {
        await row(account_id, id, trx)
        await queue.cancel(trx, queueKind, id)
        await store.remove(trx, id)
        await recordAct(trx, by, 'export.deleted', id, {}, now())
      })
      // Where it is being made, who makes it removes its folder.
      making.get(id)?.abort()
      news.emit(id)
      await removeDir(exportDir(dataDir, id))
      return { id, deleted: true }
    },

    async events(account_id, id, after, signal) {
      await row(account_id, id)
      const live = ['queued', 'running']
      const ended = async () => !live.includes((await store.byId(db, id))?.status ?? 'gone')
      return follow<ExportEvent['type']>({ db, log: store.log, news, keepalive_ms, ended }, id, after, signal)
    },

    async file(account_id, id, name) {
      const found = await row(account_id, id)
      const over = found.expires_at !== null && found.expires_at <= now()
      if (found.status !== 'ready' || over) {
        const status = over ? 'expired' : found.status
        const todo =
          { queued: 'Wait for its end.', running: 'Wait for its end.', failed: 'Its error says why.' }[
            status as 'queued'
          ] ?? 'Make another.'
        throw new ApiError('export_not_ready', `The export is ${status} and has no files to download. ${todo}`, {
          details: { status },
        })
      }
      const files = filesOf(found)
      const file = name === undefined ? files[0] : files.find((each) => each.name === name)
      if (!file)
        throw new ApiError(
          'export_not_found',
          `The export has no such file; it has ${files.map((each) => each.name).join(', ')}.`,
        )
      return { ...file, folder: exportDir(dataDir, id) }
    },

    changed: (id) => void news.emit(id),
    deleted(id) {
      const controller = making.get(id) ?? new AbortController()
      making.set(id, controller)
      return controller.signal
    },
    forget: (id) => void making.delete(id),
    expire,

    start: () => nowAndThen(expiry_ms, () => expire().catch(onExpiryFailure)),

    async sweep() {
      const folder = exportsDir(dataDir)
      for (const name of await readdir(folder).catch(() => []))
        if ((await store.byId(db, name))?.status !== 'ready') await removeDir(path.join(folder, name))
    },
  }
}
