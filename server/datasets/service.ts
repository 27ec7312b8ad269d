import { EventEmitter } from 'node:events'
import { readdir, rename, rm } from 'node:fs/promises'
import path from 'node:path'
import type { SortedQuery } from '../../contract/common.ts'
import type { Dataset, DatasetFormat, Preview, UploadFields, Validation } from '../../contract/datasets.ts'
import { ApiError } from '../../contract/errors.ts'
import { newId } from '../../lib/ids.ts'
import { numberedRowsOf } from '../../lib/jsonl.ts'
import type { Db, Trx } from '../db/open.ts'
import { type By, recordAct } from '../events/audit.ts'
import type { FormFile } from '../http/multipart.ts'
import { type Hub, requireRowTokens } from '../hub/service.ts'
import type { Queue } from '../queue/queue.ts'
import { requireFreeDisk, storeStream } from '../storage/durable-files.ts'
import { createLineCounter } from './counter.ts'
import { formatOf, headBytes } from './format.ts'
import { queueKind } from './prepare.ts'
import type { ReadResult } from './reader/main.ts'
import type { Check } from './rows.ts'
import * as store from './store.ts'
import { filesOf, toWire } from './store.ts'
import { withTokens } from './token-report.ts'
import type { Tokens } from './tokens.ts'

/** Says why a dataset is needed and must not be deleted, or undefined. Asked inside the deleting transaction. */
export type NeededBy = (trx: Trx, dataset_id: string) => Promise<string | undefined>

export interface Datasets {
  upload(by: By, upload: FormFile<UploadFields>): Promise<Dataset>
  list(account_id: string, query: SortedQuery): Promise<{ items: Dataset[]; has_more: boolean }>
  get(account_id: string, id: string): Promise<Dataset>
  delete(by: By, id: string): Promise<{ id: string; deleted: true }>
  validate(
    account_id: string,
    id: string,
    query: { model_id?: string; max_length?: number },
    signal?: AbortSignal,
  ): Promise<Validation>
  preview(
    account_id: string,
    id: string,
    query: { model_id?: string; max_length?: number; row: number },
    signal?: AbortSignal,
  ): Promise<Preview>
  /**
   * Waits until the dataset's rows have been read. Throws dataset_not_found, or dataset_not_ready where that takes
   * longer.
   */
  ready(account_id: string, id: string): Promise<void>
  /** What a job trains on. Throws dataset_not_found, dataset_not_ready, or dataset_invalid where rows are wrong. */
  forTraining(db: Db | Trx, account_id: string, id: string): Promise<{ path: string; sha256: string; rows: number }>
  /** Some of its rows, counted from 1, with their lines in the uploaded file; undefined where the dataset is gone. */
  rowsOf(id: string, rows: number[]): Promise<Map<number, { line: number; messages: unknown[] }> | undefined>
  /** Lets another feature say that it needs datasets. */
  onNeeded(neededBy: NeededBy): void
  /** Aborts when a dataset that is being read is deleted; `prepared` ends that. */
  deleted(id: string): AbortSignal
  /** Tells those who wait for a dataset. */
  prepared(id: string): void
  /**
   * The Hugging Face token that came with an upload; it is in this process's memory alone, until the dataset has been
   * read.
   */
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
  const reading = new Map<string, AbortController>()
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
      throw new ApiError(
        'dataset_not_ready',
        `The rows of '${dataset.id}' are still being read. Try again in a moment.`,
        {
          details: { status: dataset.status },
        },
      )
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

  /** What fails as the dataset is deleted meanwhile says so. */
  const whileThere = <T>(dataset: store.DatasetRow, work: Promise<T>): Promise<T> =>
    work.catch(async (error) => {
      await row(dataset.account_id, dataset.id)
      throw error
    })

  return {
    onNeeded: (neededBy) => needs.push(neededBy),
    deleted(id) {
      const controller = new AbortController()
      reading.set(id, controller)
      return controller.signal
    },
    prepared(id) {
      reading.delete(id)
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
      let head: Buffer = Buffer.alloc(0)
      const stored = await storeStream(file, upload, (chunk) => {
        bytes += chunk.length
        if (bytes > max_bytes)
          throw new ApiError('file_too_large', `The file is larger than ${max_mb} MB, the most this service takes.`, {
            details: { max_mb },
          })
        if (head.length < headBytes) head = Buffer.concat([head, chunk.subarray(0, headBytes - head.length)])
        counter.add(chunk)
      })
      try {
        const { name, description, format: given, hf_token } = await fields()
        const format = formatOf(given, filename, head)
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
          await recordAct(
            trx,
            by,
            'dataset.created',
            id,
            { name: dataset.name, sha256: dataset.sha256 },
            dataset.created_at,
          )
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
          for (const name of await readdir(folder))
            if (name.startsWith(`${id}.`)) await rm(path.join(folder, name), { recursive: true, force: true })
        throw error
      }
    },

    async list(account_id, query) {
      const rows = await store.list(db, account_id, query, query.after ? await row(account_id, query.after) : undefined)
      return { items: rows.slice(0, query.limit).map(toWire), has_more: rows.length > query.limit }
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
            throw new ApiError(
              'in_use',
              `The dataset is needed by ${user}. Cancel it or wait for its end, then delete.`,
              { details: { used_by: user } },
            )
        }
        await queue.cancel(trx, queueKind, id)
        await store.remove(trx, id)
        await recordAct(trx, by, 'dataset.deleted', id, { name: dataset.name }, now())
      })
      hubTokens.delete(id)
      reading.get(id)?.abort()
      reading.delete(id)
      news.emit(id)
      const { source, rows, part } = filesOf(dataDir, id, dataset.format)
      for (const file of [source, rows, part]) await rm(file, { force: true })
      return { id, deleted: true }
    },

    async validate(account_id, id, { model_id, max_length }, signal) {
      const dataset = await settled(account_id, id, rowsWait_ms)
      const base = model_id === undefined ? hub.localOrUndefined(defaultBase) : hub.trainable(model_id)
      const found = foundIn(dataset)
      if ('unreadable' in found)
        return { valid: false, total_samples: 0, errors: [found.unreadable.message], error_count: 1 }
      const told = {
        total_samples: dataset.rows,
        ...(found.issues && {
          issues: found.issues,
          warnings: found.warnings,
          warning_count: found.warning_count,
          duplicates: found.duplicates,
          conflicts: found.conflicts,
        }),
      }
      const valid = found.error_count === 0
      const structure = { valid, ...told, ...(!valid && { errors: found.errors, error_count: found.error_count }) }
      if (!base) return structure
      return whileThere(
        dataset,
        withTokens({ db, dataDir, tokens }, structure, dataset, base, max_length, { account_id, signal }),
      )
    },

    async preview(account_id, id, { model_id, max_length, row: number }, signal) {
      const dataset = await settled(account_id, id, rowsWait_ms)
      const base = hub.trainable(model_id ?? defaultBase)
      requireGoodRows(dataset)
      const rows = filesOf(dataDir, id, dataset.format).rows
      const asked = { hf: base.hf, rows, max_length: requireRowTokens(base, max_length, 'max_length'), row: number }
      const found = await whileThere(dataset, tokens.preview({ account_id, signal }, asked))
      if (!found)
        throw new ApiError('invalid_request', `'row' must be from 1 to ${dataset.rows}, the rows of the dataset.`, {
          details: { field: 'row', rows: dataset.rows },
        })
      return { model_id: base.id, row: number, ...found }
    },

    async ready(account_id, id) {
      requireRows(await settled(account_id, id, rowsWait_ms))
    },

    async rowsOf(id, rows) {
      const wanted = new Set(rows)
      const found = new Map<number, { line: number; messages: unknown[] }>()
      const converted = (await store.byId(db, id))?.format !== 'jsonl'
      try {
        let number = 0
        for await (const { line, json } of numberedRowsOf(filesOf(dataDir, id, 'jsonl').rows)) {
          if (wanted.has(++number)) {
            const { messages, source_line } = JSON.parse(json)
            found.set(number, { line: converted ? (source_line ?? line) : line, messages })
          }
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
        if (!(await store.byId(db, name.split('.')[0]!)))
          await rm(path.join(folder, name), { recursive: true, force: true })
    },
  }
}

// What a dataset is refused for.

/** A dataset with rows that cannot be trained on. */
export const invalid = (dataset: { id: string; rows: number }, check: Check) =>
  new ApiError(
    'dataset_invalid',
    `${check.error_count} of the dataset's ${dataset.rows} rows cannot be trained on. POST /v1/datasets/${dataset.id}/validate lists them.`,
    { details: { error_count: check.error_count, errors: check.errors.slice(0, 10) } },
  )

/** What cannot be read as lines of text is refused whole; rows that are merely wrong are kept, for validate to tell. */
export function refuseUnreadable(
  format: DatasetFormat,
  size_bytes: number,
  counted: { rows: number; not_utf8_line?: number },
  max_rows: number,
): void {
  if (size_bytes === 0) throw new ApiError('file_empty', 'The file is empty.')
  if (format !== 'jsonl') return
  if (counted.not_utf8_line)
    throw new ApiError(
      'file_not_utf8',
      `The file is not UTF-8 text (first seen in line ${counted.not_utf8_line}). Save it as UTF-8 and upload it again.`,
      {
        details: { line: counted.not_utf8_line },
      },
    )
  if (counted.rows === 0) throw new ApiError('file_empty', 'The file has no rows, only blank lines.')
  if (counted.rows > max_rows)
    throw new ApiError('file_too_large', `The file has more than ${max_rows} rows, the most this service takes.`, {
      details: { max_rows },
    })
}
