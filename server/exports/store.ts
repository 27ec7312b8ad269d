import type { ExportQuery } from '../../contract/exports.ts'
import type { Db, Trx } from '../db/open.ts'
import { timed } from '../db/page.ts'
import type { NewRow, Row } from '../db/schema.ts'
import { createEventLog } from '../event-log.ts'

export type ExportRow = Row<'exports'>

export const log = createEventLog('export_events', 'export_id')

export const insert = (trx: Trx, made: NewRow<'exports'>) => trx.insertInto('exports').values(made).execute()

export const find = (db: Db | Trx, account_id: string, id: string) =>
  db.selectFrom('exports').selectAll().where('account_id', '=', account_id).where('id', '=', id).executeTakeFirst()

export const byId = (db: Db | Trx, id: string) => db.selectFrom('exports').selectAll().where('id', '=', id).executeTakeFirst()

export function list(db: Db, account_id: string, query: ExportQuery, after: ExportRow | undefined): Promise<ExportRow[]> {
  const { status, model } = query
  let found = db.selectFrom('exports').selectAll().where('account_id', '=', account_id)
  if (status !== undefined) found = found.where('status', '=', status)
  if (model !== undefined) found = found.where('model_id', '=', model)
  return timed(found, query, after)
}

export const update = (trx: Trx, id: string, values: Partial<ExportRow>) => trx.updateTable('exports').set(values).where('id', '=', id).execute()

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
  const { count } = await query.where('account_id', '=', account_id).where('status', '=', 'queued').executeTakeFirstOrThrow()
  return Number(count)
}

/** Those whose time is over. */
export const due = (db: Db, now: number) => db.selectFrom('exports').selectAll().where('status', '=', 'ready').where('expires_at', '<=', now).execute()

export const ready = (db: Db) => db.selectFrom('exports').select(['id', 'files_json']).where('status', '=', 'ready').execute()
