import { rm } from 'node:fs/promises'
import path from 'node:path'
import type { Export, ExportQuery } from '../../../contract/exports.ts'
import { isoTime } from '../../../lib/utc-day.ts'
import { fromJson } from '../../platform/db/json.ts'
import type { NeededBy } from '../../platform/db/needed-by.ts'
import type { Db, Queryable, Trx } from '../../platform/db/open.ts'
import { countRows, timedPage } from '../../platform/db/page.ts'
import type { NewRow, Row } from '../../platform/db/schema.ts'
import { createEventStream } from '../../platform/events/event-streams.ts'

export type ExportRow = Row<'exports'>

export const events = createEventStream('export_events', 'export_id')

export const insert = (trx: Trx, row: NewRow<'exports'>) => trx.insertInto('exports').values(row).execute()

export const find = (db: Queryable, account_id: string, id: string) =>
  db.selectFrom('exports').selectAll().where('account_id', '=', account_id).where('id', '=', id).executeTakeFirst()

export const findUnscoped = (db: Queryable, id: string) =>
  db.selectFrom('exports').selectAll().where('id', '=', id).executeTakeFirst()

export function list(
  db: Db,
  account_id: string,
  query: ExportQuery,
  after: ExportRow | undefined,
): Promise<ExportRow[]> {
  const { status, model } = query
  let filtered = db.selectFrom('exports').selectAll().where('account_id', '=', account_id)
  if (status !== undefined) filtered = filtered.where('status', '=', status)
  if (model !== undefined) filtered = filtered.where('model_id', '=', model)
  return timedPage(filtered, query, after)
}

export const update = (trx: Trx, id: string, values: Partial<ExportRow>) =>
  trx.updateTable('exports').set(values).where('id', '=', id).execute()

/** Its events are deleted by cascade. */
export const remove = (trx: Trx, id: string) => trx.deleteFrom('exports').where('id', '=', id).execute()

export const exportNeedsModel: NeededBy = async (trx, account_id, model_id) => {
  const active = await trx
    .selectFrom('exports')
    .select('id')
    .where('account_id', '=', account_id)
    .where('model_id', '=', model_id)
    .where('status', 'in', ['queued', 'running'])
    .limit(1)
    .executeTakeFirst()
  return active && `the export ${active.id}`
}

export const ownsRepository = async (db: Db, account_id: string, repository: string): Promise<boolean> =>
  (await db
    .selectFrom('export_repositories')
    .select('repository')
    .where('repository', '=', repository.toLowerCase())
    .where('account_id', '=', account_id)
    .executeTakeFirst()) !== undefined

/** A repository that was removed from the hub and created again belongs to the account that created it last. */
export const claimRepository = (trx: Trx, account_id: string, repository: string) =>
  trx
    .insertInto('export_repositories')
    .values({ repository: repository.toLowerCase(), account_id })
    .onConflict((conflict) => conflict.column('repository').doUpdateSet({ account_id }))
    .execute()

/** Ready exports whose retention has ended. */
export const listExpired = (db: Db, now: number) =>
  db.selectFrom('exports').selectAll().where('status', '=', 'ready').where('expires_at', '<=', now).execute()

export const listReady = (db: Db) =>
  db.selectFrom('exports').select(['id', 'files_json']).where('status', '=', 'ready').execute()

export const filesOf = (row: Pick<ExportRow, 'files_json'>) => fromJson(row.files_json)

export function toResponse(row: ExportRow): Export {
  const files = filesOf(row)
  return {
    id: row.id,
    status: row.status,
    model: row.model_id,
    format: row.format,
    quantization: row.quantization,
    merge: row.merge === 1,
    archive: row.archive,
    stage: row.stage as Export['stage'],
    progress: row.progress,
    files,
    size_bytes: files.length > 0 ? files.reduce((sum, { size_bytes }) => sum + size_bytes, 0) : null,
    check: fromJson(row.check_json),
    push: fromJson(row.push_json),
    error: fromJson(row.error_json),
    created_at: isoTime(row.created_at),
    started_at: isoTime(row.started_at),
    finished_at: isoTime(row.finished_at),
    expires_at: isoTime(row.expires_at),
  }
}

/** The folder of all exports. */
export const exportsDir = (dataDir: string) => path.join(dataDir, 'exports')

/** The folder with the files of a ready export. */
export const exportDir = (dataDir: string, id: string) => path.join(exportsDir(dataDir), id)

/** The artifact of a ready export. */
export const exportKey = (id: string) => `${exportDir('', id)}/`

/** The folder in which an export is made, with incomplete files. */
export const partialDir = (dataDir: string, id: string) => `${exportDir(dataDir, id)}.part`

/** Removes a folder recursively. Retries, because a program that was just stopped may still write into it. */
export const removeDir = (folder: string) =>
  rm(folder, { recursive: true, force: true, maxRetries: 5, retryDelay: 100 })

/** How many exports of an account have not begun. */
export const countQueued = (trx: Trx, account_id: string): Promise<number> =>
  countRows(trx.selectFrom('exports').where('account_id', '=', account_id).where('status', '=', 'queued'))
