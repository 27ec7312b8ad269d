import { rm } from 'node:fs/promises'
import path from 'node:path'
import type { ListQuery } from '../../contract/common.ts'
import type { Dataset, DatasetFormat, Validation } from '../../contract/datasets.ts'
import { ApiError } from '../../contract/errors.ts'
import type { Db, Trx } from '../db/open.ts'
import type { Hub } from '../hub/service.ts'
import { newId } from '../ids.ts'
import { requireFreeDisk, storeStream } from '../storage.ts'
import { rowsOf } from './lines.ts'
import { type Check, createRowChecker } from './rows.ts'
import * as store from './store.ts'
import { averageTokens, tokenCounter } from './tokens.ts'

/** Says why a dataset is needed and must not be deleted, or undefined. Asked inside the deleting transaction. */
export type NeededBy = (trx: Trx, dataset_id: string) => Promise<string | undefined>

export interface Upload {
  file: NodeJS.ReadableStream
  filename: string
  /** Called when the file has been read: a form's fields may come after it. */
  fields(): Promise<{ name?: string; description: string; format: DatasetFormat }>
}

export interface Datasets {
  upload(account_id: string, upload: Upload): Promise<Dataset>
  list(account_id: string, query: ListQuery): Promise<{ items: Dataset[]; has_more: boolean }>
  get(account_id: string, id: string): Promise<Dataset>
  delete(account_id: string, id: string): Promise<{ id: string; deleted: true }>
  validate(account_id: string, id: string): Promise<Validation>
  /** What a job trains on. Throws dataset_not_found, or dataset_invalid where rows are wrong. */
  forTraining(db: Db | Trx, account_id: string, id: string): Promise<{ path: string; sha256: string; rows: number }>
  /** The messages of some of its rows, counted from 1; undefined where the dataset is gone. */
  messagesOf(id: string, rows: number[]): Promise<Map<number, unknown[]> | undefined>
  /** Lets another feature say that it needs datasets. */
  onNeeded(neededBy: NeededBy): void
}

interface Options {
  db: Db
  hub: Hub
  dataDir: string
  max_mb: number
  max_rows: number
  min_free_mb: number
  defaultBase: string
  now?: () => number
}

export function createDatasets({ db, hub, dataDir, max_mb, max_rows, min_free_mb, defaultBase, now = Date.now }: Options): Datasets {
  const pathOf = (id: string) => path.join(dataDir, 'datasets', `${id}.jsonl`)
  const needs: NeededBy[] = []

  async function row(account_id: string, id: string, from: Db | Trx = db) {
    const found = await store.find(from, account_id, id)
    if (!found) throw new ApiError('dataset_not_found', `There is no dataset '${id}'.`)
    return found
  }

  return {
    onNeeded: (neededBy) => needs.push(neededBy),

    async upload(account_id, { file, filename, fields }) {
      await requireFreeDisk(dataDir, min_free_mb)
      const id = newId('ds')
      const checker = createRowChecker()
      const max_bytes = max_mb * 1e6
      let bytes = 0
      const stored = await storeStream(file, pathOf(id), (chunk) => {
        bytes += chunk.length
        if (bytes > max_bytes)
          throw new ApiError('file_too_large', `The file is larger than ${max_mb} MB, the most this service takes.`, { details: { max_mb } })
        checker.add(chunk)
        if (checker.rows() > max_rows)
          throw new ApiError('file_too_large', `The file has more than ${max_rows} rows, the most this service takes.`, { details: { max_rows } })
      })
      try {
        const { name, description, format } = await fields()
        if (format !== 'jsonl')
          throw new ApiError('format_not_supported_yet', `The format '${format}' cannot be read yet. Convert the file to jsonl: one {"messages":[…]} a line.`, {
            details: { supported: ['jsonl'] },
          })
        const check = checker.end()
        refuseUnreadable(check, stored.size_bytes)
        const dataset = {
          id,
          account_id,
          name: name ?? filename,
          description,
          format,
          rows: check.rows,
          ...stored,
          check_json: JSON.stringify(check),
          created_at: now(),
        }
        await store.insert(db, dataset)
        return toWire(dataset)
      } catch (error) {
        await rm(pathOf(id), { force: true })
        throw error
      }
    },

    async list(account_id, { limit, after }) {
      const rows = await store.list(db, account_id, limit, after ? await row(account_id, after) : undefined)
      return { items: rows.slice(0, limit).map(toWire), has_more: rows.length > limit }
    },

    get: async (account_id, id) => toWire(await row(account_id, id)),

    async delete(account_id, id) {
      await db.transaction().execute(async (trx) => {
        await row(account_id, id, trx)
        for (const neededBy of needs) {
          const user = await neededBy(trx, id)
          if (user)
            throw new ApiError('in_use', `The dataset is needed by ${user}. Cancel it or wait for its end, then delete.`, { details: { used_by: user } })
        }
        await store.remove(trx, id)
      })
      await rm(pathOf(id), { force: true })
      return { id, deleted: true }
    },

    async validate(account_id, id) {
      const dataset = await row(account_id, id)
      const check = JSON.parse(dataset.check_json) as Check
      if (check.error_count > 0) return { valid: false, total_samples: dataset.rows, errors: check.errors, error_count: check.error_count }
      const base = hub.localOrUndefined(defaultBase)
      if (!base) return { valid: true, total_samples: dataset.rows }
      const average = await averageTokens(pathOf(id), dataset.rows, await tokenCounter(base.hf))
      return { valid: true, total_samples: dataset.rows, avg_tokens_per_sample: Math.round(average * 10) / 10 }
    },

    async messagesOf(id, rows) {
      const wanted = new Set(rows)
      const found = new Map<number, unknown[]>()
      try {
        let number = 0
        for await (const json of rowsOf(pathOf(id))) {
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
      const check = JSON.parse(dataset.check_json) as Check
      if (check.error_count > 0)
        throw new ApiError(
          'dataset_invalid',
          `${check.error_count} of the dataset's ${dataset.rows} rows cannot be trained on. POST /v1/datasets/${id}/validate lists them.`,
          {
            details: { error_count: check.error_count, errors: check.errors.slice(0, 10) },
          },
        )
      return { path: pathOf(id), sha256: dataset.sha256, rows: dataset.rows }
    },
  }
}

// What cannot be read as lines of text is refused whole; rows that are merely wrong are kept, for validate to tell.
function refuseUnreadable(check: Check, size_bytes: number): void {
  if (size_bytes === 0) throw new ApiError('file_empty', 'The file is empty.')
  if (check.not_utf8_line)
    throw new ApiError('file_not_utf8', `The file is not UTF-8 text (first seen in line ${check.not_utf8_line}). Save it as UTF-8 and upload it again.`, {
      details: { line: check.not_utf8_line },
    })
  if (check.rows === 0) throw new ApiError('file_empty', 'The file has no rows: every line is blank.')
}

const toWire = (row: Omit<store.DatasetRow, 'check_json'>): Dataset => ({
  id: row.id,
  name: row.name,
  description: row.description,
  format: row.format,
  rows: row.rows,
  size_mb: Number((row.size_bytes / 1e6).toPrecision(4)),
  sha256: row.sha256,
  created_at: new Date(row.created_at).toISOString(),
})
