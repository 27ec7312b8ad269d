import { EventEmitter } from 'node:events'
import { readdir, rename, rm } from 'node:fs/promises'
import path from 'node:path'
import type { ListQuery } from '../../contract/common.ts'
import type { Dataset, Preview, UploadFields, Validation } from '../../contract/datasets.ts'
import { ApiError } from '../../contract/errors.ts'
import { type By, recordAct } from '../audit.ts'
import type { Db, Trx } from '../db/open.ts'
import type { FormFile } from '../http/form.ts'
import { type Hub, maxRowTokens } from '../hub/service.ts'
import { newId } from '../ids.ts'
import type { Queue } from '../queue/queue.ts'
import { requireFreeDisk, storeStream } from '../storage.ts'
import { createLineCounter } from './counter.ts'
import { filesOf } from './files.ts'
import { rowsOf } from './lines.ts'
import { queueKind } from './prepare.ts'
import type { ReadResult } from './reader/main.ts'
import { invalid, refuseUnreadable } from './refuse.ts'
import type { Check } from './rows.ts'
import * as store from './store.ts'
import type { TokenCount, Tokens } from './tokens.ts'

/** Says why a dataset is needed and must not be deleted, or undefined. Asked inside the deleting transaction. */
export type NeededBy = (trx: Trx, dataset_id: string) => Promise<string | undefined>

export interface Datasets {
  upload(by: By, upload: FormFile<UploadFields>): Promise<Dataset>
  list(account_id: string, query: ListQuery): Promise<{ items: Dataset[]; has_more: boolean }>
  get(account_id: string, id: string): Promise<Dataset>
  delete(by: By, id: string): Promise<{ id: string; deleted: true }>
  validate(account_id: string, id: string, model_id: string | undefined): Promise<Validation>
  preview(account_id: string, id: string, query: { model_id?: string; row: number }): Promise<Preview>
  /** Waits until the dataset's rows have been read. Throws dataset_not_found, or dataset_not_ready where that takes longer. */
  ready(account_id: string, id: string): Promise<void>
  /** What a job trains on. Throws dataset_not_found, dataset_not_ready, or dataset_invalid where rows are wrong. */
  forTraining(db: Db | Trx, account_id: string, id: string): Promise<{ path: string; sha256: string; rows: number }>
  /** The messages of some of its rows, counted from 1; undefined where the dataset is gone. */
  messagesOf(id: string, rows: number[]): Promise<Map<number, unknown[]> | undefined>
  /** Lets another feature say that it needs datasets. */
  onNeeded(neededBy: NeededBy): void
  /** Tells those who wait for a dataset. */
  prepared(id: string): void
  /** The Hugging Face token that came with an upload; it is in this process's memory alone, until the dataset has been read. */
  hubToken(id: string): string | undefined
  /** Removes files that a crash left without a row. */
  sweep(): Promise<void>
}

interface Options {
  db: Db
  queue: Queue
  hub: Hub
  tokens: Tokens
  dataDir: string
  max_mb: number
  max_rows: number
  min_free_mb: number
  defaultBase: string
  now?: () => number
}

/** How long an upload waits to hear whether its file can be read; how long one who needs the rows does. */
const uploadWait_ms = 12_000
const rowsWait_ms = 60_000

export function createDatasets(options: Options): Datasets {
  const { db, queue, hub, tokens, dataDir, max_mb, max_rows, min_free_mb, defaultBase, now = Date.now } = options
  const needs: NeededBy[] = []
  const hubTokens = new Map<string, string>()
  const news = new EventEmitter()
  news.setMaxListeners(0)

  async function row(account_id: string, id: string, from: Db | Trx = db) {
    const found = await store.find(from, account_id, id)
    if (!found) throw new ApiError('dataset_not_found', `There is no dataset '${id}'.`)
    return found
  }

  /** The dataset when it has been read, or as it is when the time is over. */
  async function settled(account_id: string, id: string, wait_ms: number): Promise<store.DatasetRow> {
    const deadline = AbortSignal.timeout(wait_ms)
    for (;;) {
      const heard = Promise.withResolvers<void>()
      news.once(id, heard.resolve)
      deadline.addEventListener('abort', () => heard.resolve(), { once: true })
      try {
        const dataset = await row(account_id, id)
        if (dataset.status !== 'preparing' || deadline.aborted) return dataset
        await heard.promise
      } finally {
        news.off(id, heard.resolve)
      }
    }
  }

  function foundIn(dataset: store.DatasetRow): Check | Extract<ReadResult, { unreadable: unknown }> {
    if (dataset.status === 'preparing')
      throw new ApiError('dataset_not_ready', `The rows of '${dataset.id}' are still being read. Try again in a moment.`, {
        details: { status: dataset.status },
      })
    return JSON.parse(dataset.check_json)
  }

  function requireRows(dataset: store.DatasetRow): Check {
    const found = foundIn(dataset)
    if ('unreadable' in found) throw new ApiError('dataset_invalid', found.unreadable.message)
    return found
  }

  function requireGoodRows(dataset: store.DatasetRow): void {
    const check = requireRows(dataset)
    if (check.error_count > 0) throw invalid(dataset, check)
  }

  /** Its tokens for a base, counted once. */
  async function count(dataset: store.DatasetRow, base: { id: string; hf: string; context_length: number }): Promise<TokenCount> {
    const known = await store.tokensOf(db, dataset.id, base.id)
    if (known) return JSON.parse(known)
    const found = await tokens.count({
      hf: base.hf,
      rows: filesOf(dataDir, dataset.id, dataset.format).rows,
      max_length: maxRowTokens(base),
    })
    await store.saveTokens(db, dataset.id, base.id, JSON.stringify(found))
    return found
  }

  return {
    onNeeded: (neededBy) => needs.push(neededBy),
    prepared(id) {
      hubTokens.delete(id)
      news.emit(id)
    },
    hubToken: (id) => hubTokens.get(id),

    async upload(by, { file, filename, fields }) {
      const { account_id } = by
      await requireFreeDisk(dataDir, min_free_mb)
      const id = newId('ds')
      const { folder } = filesOf(dataDir, id, 'jsonl')
      const upload = path.join(folder, `${id}.upload`)
      const counter = createLineCounter()
      const max_bytes = max_mb * 1e6
      let bytes = 0
      const stored = await storeStream(file, upload, (chunk) => {
        bytes += chunk.length
        if (bytes > max_bytes)
          throw new ApiError('file_too_large', `The file is larger than ${max_mb} MB, the most this service takes.`, { details: { max_mb } })
        counter.add(chunk)
      })
      try {
        const { name, description, format, hf_token } = await fields()
        const counted = counter.end()
        refuseUnreadable(format, stored.size_bytes, counted, max_rows)
        await rename(upload, filesOf(dataDir, id, format).source)
        const dataset = {
          id,
          account_id,
          name: name ?? filename,
          description,
          format,
          rows: format === 'jsonl' ? counted.rows : 0,
          ...stored,
          rows_sha256: format === 'jsonl' ? stored.sha256 : null,
          status: 'preparing' as const,
          check_json: '{}',
          created_at: now(),
        }
        if (hf_token) hubTokens.set(id, hf_token)
        await db.transaction().execute(async (trx) => {
          await store.insert(trx, dataset)
          await recordAct(trx, by, 'dataset.created', id, { name: dataset.name, sha256: dataset.sha256 }, dataset.created_at)
          await queue.enqueue(trx, queueKind, id)
        })
        queue.wake()
        if (format === 'jsonl') return toWire(dataset)
        const read = await settled(account_id, id, uploadWait_ms)
        if (read.status !== 'unreadable') return toWire(read)
        const { unreadable } = JSON.parse(read.check_json) as Extract<ReadResult, { unreadable: unknown }>
        await store.remove(db, id)
        throw new ApiError(unreadable.code, unreadable.message)
      } catch (error) {
        if (!(await store.byId(db, id)))
          for (const name of await readdir(folder)) if (name.startsWith(`${id}.`)) await rm(path.join(folder, name), { recursive: true, force: true })
        throw error
      }
    },

    async list(account_id, { limit, after }) {
      const rows = await store.list(db, account_id, limit, after ? await row(account_id, after) : undefined)
      return { items: rows.slice(0, limit).map(toWire), has_more: rows.length > limit }
    },

    get: async (account_id, id) => toWire(await row(account_id, id)),

    async delete(by, id) {
      const { account_id } = by
      const dataset = await row(account_id, id)
      await db.transaction().execute(async (trx) => {
        await row(account_id, id, trx)
        for (const neededBy of needs) {
          const user = await neededBy(trx, id)
          if (user)
            throw new ApiError('in_use', `The dataset is needed by ${user}. Cancel it or wait for its end, then delete.`, { details: { used_by: user } })
        }
        await queue.cancel(trx, queueKind, id)
        await store.remove(trx, id)
        await recordAct(trx, by, 'dataset.deleted', id, { name: dataset.name }, now())
      })
      hubTokens.delete(id)
      const { source, rows, part } = filesOf(dataDir, id, dataset.format)
      for (const file of [source, rows, part]) await rm(file, { force: true })
      return { id, deleted: true }
    },

    async validate(account_id, id, model_id) {
      const dataset = await settled(account_id, id, rowsWait_ms)
      const base = model_id === undefined ? hub.localOrUndefined(defaultBase) : hub.trainable(model_id)
      const found = foundIn(dataset)
      if ('unreadable' in found) return { valid: false, total_samples: 0, errors: [found.unreadable.message], error_count: 1 }
      const told = {
        total_samples: dataset.rows,
        ...(found.issues && { issues: found.issues, warnings: found.warnings, warning_count: found.warning_count, duplicates: found.duplicates }),
      }
      if (found.error_count > 0) return { valid: false, ...told, errors: found.errors, error_count: found.error_count }
      if (!base) return { valid: true, ...told }
      const { tokens, rows, ...rest } = await count(dataset, base)
      return { valid: true, ...told, avg_tokens_per_sample: Math.round((tokens / rows) * 10) / 10, tokens: { model_id: base.id, total: tokens, ...rest } }
    },

    async preview(account_id, id, { model_id, row: number }) {
      const dataset = await settled(account_id, id, rowsWait_ms)
      const base = hub.trainable(model_id ?? defaultBase)
      requireGoodRows(dataset)
      const rows = filesOf(dataDir, id, dataset.format).rows
      const found = await tokens.preview({ hf: base.hf, rows, max_length: maxRowTokens(base), row: number })
      if (!found)
        throw new ApiError('invalid_request', `'row' must be from 1 to ${dataset.rows}, the rows of the dataset.`, {
          details: { field: 'row', rows: dataset.rows },
        })
      return { model_id: base.id, row: number, ...found }
    },

    async ready(account_id, id) {
      requireRows(await settled(account_id, id, rowsWait_ms))
    },

    async messagesOf(id, rows) {
      const wanted = new Set(rows)
      const found = new Map<number, unknown[]>()
      try {
        let number = 0
        for await (const json of rowsOf(filesOf(dataDir, id, 'jsonl').rows)) {
          if (wanted.has(++number)) found.set(number, JSON.parse(json).messages)
          if (found.size === wanted.size) break
        }
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined
        throw error
      }
      return found
    },

    async forTraining(from, account_id, id) {
      const dataset = await row(account_id, id, from)
      requireGoodRows(dataset)
      return { path: filesOf(dataDir, id, dataset.format).rows, sha256: dataset.rows_sha256!, rows: dataset.rows }
    },

    async sweep() {
      const folder = path.join(dataDir, 'datasets')
      for (const name of await readdir(folder).catch(() => []))
        if (!(await store.byId(db, name.split('.')[0]!))) await rm(path.join(folder, name), { recursive: true, force: true })
    },
  }
}

const toWire = (dataset: store.DatasetRow): Dataset => ({
  id: dataset.id,
  name: dataset.name,
  description: dataset.description,
  format: dataset.format,
  status: dataset.status,
  rows: dataset.rows,
  size_mb: Number((dataset.size_bytes / 1e6).toPrecision(4)),
  sha256: dataset.sha256,
  created_at: new Date(dataset.created_at).toISOString(),
})
