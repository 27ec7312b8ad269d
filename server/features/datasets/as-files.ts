// Datasets as OpenAI's files for fine-tuning.

import type { File } from '../../../contract/files.ts'
import { unixSeconds } from '../../../lib/utc-day.ts'
import type { Db } from '../../platform/db/open.ts'
import { timedPage } from '../../platform/db/page.ts'
import * as store from './store.ts'

export interface DatasetFiles {
  /** Up to `limit` of them after `after`, and one more if there are more. */
  list(
    account_id: string,
    page: { limit: number; order: 'asc' | 'desc' },
    after: { created_at: number; id: string } | undefined,
  ): Promise<FileEntry[]>
  find(account_id: string, id: string): Promise<(FileEntry & { path: string; sha256: string }) | undefined>
}

/** A file with its exact time of creation, by which lists are ordered. */
export interface FileEntry {
  id: string
  created_at: number
  file: File
}

export function createDatasetFiles(db: Db, dataDir: string): DatasetFiles {
  return {
    async list(account_id, page, after) {
      const query = db.selectFrom('datasets').selectAll().where('account_id', '=', account_id)
      return (await timedPage(query, page, after)).map(toEntry)
    },
    async find(account_id, id) {
      const dataset = await store.find(db, account_id, id)
      if (!dataset) return undefined
      const { source } = store.filesOf(dataDir, dataset)
      return { ...toEntry(dataset), path: source, sha256: dataset.sha256 }
    },
  }
}

function toEntry(dataset: store.DatasetRow): FileEntry {
  const { id, created_at } = dataset
  const problem = problemOf(dataset)
  return {
    id,
    created_at,
    file: {
      id,
      object: 'file',
      bytes: dataset.size_bytes,
      created_at: unixSeconds(created_at),
      expires_at: null,
      filename: dataset.name,
      purpose: 'fine-tune',
      status: dataset.status === 'preparing' ? 'uploaded' : problem ? 'error' : 'processed',
      status_details: problem,
    },
  }
}

function problemOf(dataset: store.DatasetRow): string | null {
  if (dataset.status === 'preparing') return null
  const read = store.readFileOf(dataset)
  if ('unreadable' in read) return read.unreadable.message
  if (read.error_count === 0) return null
  return `${read.error_count} of ${dataset.rows} rows cannot be trained on. The first: ${read.errors[0]}`
}
