import type { Db, Queryable, Trx } from '../../platform/db/open.ts'
import type { NewRow, Row } from '../../platform/db/schema.ts'

export type DownloadRow = Row<'model_downloads'>

export const find = (db: Queryable, model_id: string) =>
  db.selectFrom('model_downloads').selectAll().where('model_id', '=', model_id).executeTakeFirst()

export const listAll = (db: Db) => db.selectFrom('model_downloads').selectAll().execute()

/** Inserts a download, or replaces an earlier one of the same model. */
export const upsert = (trx: Trx, row: NewRow<'model_downloads'>) =>
  trx
    .insertInto('model_downloads')
    .values(row)
    .onConflict((conflict) => conflict.column('model_id').doUpdateSet(row))
    .execute()

export const update = (trx: Trx, model_id: string, values: Partial<DownloadRow>) =>
  trx.updateTable('model_downloads').set(values).where('model_id', '=', model_id).execute()
