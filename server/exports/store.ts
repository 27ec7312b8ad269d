import { rm } from 'node:fs/promises'
import path from 'node:path'
import type { Export, ExportFile, ExportQuery } from '../../contract/exports.ts'
import type { Db, Trx } from '../db/open.ts'
import { timed } from '../db/page.ts'
import type { NewRow, Row } from '../db/schema.ts'
import { createEventLog } from '../events/event-streams.ts'

export type ExportRow = Row<'exports'>

export const log = createEventLog('export_events', 'export_id')

export const insert = (trx: Trx, made: NewRow<'exports'>) => trx.insertInto('exports').values(made).execute()

export const find = (db: Db | Trx, account_id: string, id: string) =>
  db.selectFrom('exports').selectAll().where('account_id', '=', account_id).where('id', '=', id).executeTakeFirst()

export const byId = (db: Db | Trx, id: string) =>
  db.selectFrom('exports').selectAll().where('id', '=', id).executeTakeFirst()

export function list(
  db: Db,
  account_id: string,
  query: ExportQuery,
  after: ExportRow | undefined,
): Promise<ExportRow[]> {
  const { status, model } = query
  let found = db.selectFrom('exports').selectAll().where('account_id', '=', account_id)
  if (status !== undefined) found = found.where('status', '=', status)
  if (model !== undefined) found = found.where('model_id', '=', model)
  return timed(found, query, after)
}

export const update = (trx: Trx, id: string, values: Partial<ExportRow>) =>
  trx.updateTable('exports').set(values).where('id', '=', id).execute()

/** Its events go with it. */
export const remove = (trx: Trx, id: string) => trx.deleteFrom('exports').where('id', '=', id).execute()

/** One that is still to be made of this model, if there is one. */
export const liveOfModel = (trx: Trx, account_id: string, model_id: string) =>
  trx
    .selectFrom('exports')
    .select('id')
    .where('account_id', '=', account_id)
    .where('model_id', '=', model_id)
    .where('status', 'in', ['queued', 'running'])
    .limit(1)
    .executeTakeFirst()

export const ownsRepository = async (db: Db, account_id: string, repository: string): Promise<boolean> =>
  (await db
    .selectFrom('export_repositories')
    .select('repository')
    .where('repository', '=', repository.toLowerCase())
    .where('account_id', '=', account_id)
    .executeTakeFirst()) !== undefined

/** One that was removed from the hub and made again belongs to whom it was made for last. */
export const ownRepository = (trx: Trx, account_id: string, repository: string) =>
  trx
    .insertInto('export_repositories')
    .values({ repository: repository.toLowerCase(), account_id })
    .onConflict((conflict) => conflict.column('repository').doUpdateSet({ account_id }))
    .execute()

/** How many of an account wait for their turn. */
export async function waiting(trx: Trx, account_id: string): Promise<number> {
  const query = trx.selectFrom('exports').select(({ fn }) => fn.countAll().as('count'))
  const { count } = await query
    .where('account_id', '=', account_id)
    .where('status', '=', 'queued')
    .executeTakeFirstOrThrow()
  return Number(count)
}

/** Those whose time is over. */
export const due = (db: Db, now: number) =>
  db.selectFrom('exports').selectAll().where('status', '=', 'ready').where('expires_at', '<=', now).execute()

export const ready = (db: Db) =>
  db.selectFrom('exports').select(['id', 'files_json']).where('status', '=', 'ready').execute()

const iso = (time: number | null) => (time === null ? null : new Date(time).toISOString())
const json = (text: string | null) => (text === null ? null : JSON.parse(text))

export const filesOf = (row: Pick<ExportRow, 'files_json'>) => JSON.parse(row.files_json) as ExportFile[]

export function toWire(row: ExportRow): Export {
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
    check: json(row.check_json),
    push: json(row.push_json),
    error: json(row.error_json),
    created_at: new Date(row.created_at).toISOString(),
    started_at: iso(row.started_at),
    finished_at: iso(row.finished_at),
    expires_at: iso(row.expires_at),
  }
}

/** Where all exports of the service lie. */
export const exportsDir = (dataDir: string) => path.join(dataDir, 'exports')

/** The folder of one that is ready: its files and nothing else. */
export const exportDir = (dataDir: string, id: string) => path.join(exportsDir(dataDir), id)

/** Where one is made; what is in it is nobody's yet. */
export const makingDir = (dataDir: string, id: string) => `${exportDir(dataDir, id)}.part`

/**
 * Removes a folder and all in it. A program that was stopped just now, or whose server was, may write for a moment
 * still: what it adds goes with the next try.
 */
export const removeDir = (folder: string) =>
  rm(folder, { recursive: true, force: true, maxRetries: 5, retryDelay: 100 })
