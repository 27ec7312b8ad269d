import type { Db, Trx } from '../db/open.ts'
import { olderThan } from '../db/page.ts'
import type { NewRow, Row } from '../db/schema.ts'

export type DatasetRow = Row<'datasets'>

export const insert = (db: Db, dataset: NewRow<'datasets'>) => db.insertInto('datasets').values(dataset).execute()

export const find = (db: Db | Trx, account_id: string, id: string) =>
  db.selectFrom('datasets').selectAll().where('account_id', '=', account_id).where('id', '=', id).executeTakeFirst()

/** A page, newest first, of what comes after the dataset `after`; one more than `limit` when there is more. */
export async function list(db: Db, account_id: string, limit: number, after: DatasetRow | undefined): Promise<DatasetRow[]> {
  let query = db.selectFrom('datasets').selectAll().where('account_id', '=', account_id)
  if (after) query = query.where(olderThan(after))
  return await query
    .orderBy('created_at', 'desc')
    .orderBy('id', 'desc')
    .limit(limit + 1)
    .execute()
}

export const remove = (trx: Trx, id: string) => trx.deleteFrom('datasets').where('id', '=', id).execute()
