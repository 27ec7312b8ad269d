import type { InputItem, Response } from '../../../contract/responses.ts'
import type { Db } from '../../db/open.ts'
import type { Row } from '../../db/schema.ts'

export type StoredItem = InputItem & { id: string }

export const insert = (db: Db, row: Row<'responses'>) => db.insertInto('responses').values(row).execute()

export const find = (db: Db, account_id: string, id: string) =>
  db.selectFrom('responses').selectAll().where('account_id', '=', account_id).where('id', '=', id).executeTakeFirst()

/** Resolves with whether there was one. */
export async function remove(db: Db, account_id: string, id: string): Promise<boolean> {
  const { numDeletedRows } = await db
    .deleteFrom('responses')
    .where('account_id', '=', account_id)
    .where('id', '=', id)
    .executeTakeFirst()
  return numDeletedRows > 0n
}

export const inputOf = (row: Row<'responses'>) => JSON.parse(row.input_json) as StoredItem[]
export const responseOf = (row: Row<'responses'>) => JSON.parse(row.response_json) as Response
