import { sql } from 'kysely'
import type { InputItem } from '../../../../contract/responses.ts'
import { fromJson } from '../../../platform/db/json.ts'
import type { Db, Trx } from '../../../platform/db/open.ts'
import type { Row } from '../../../platform/db/schema.ts'

export type StoredItem = InputItem & { id: string }

export const insert = (trx: Trx, row: Row<'responses'>) => trx.insertInto('responses').values(row).execute()

/** Marks a response, and those that its conversation began with, as used. */
export const keep = (trx: Trx, account_id: string, id: string, used_at: number) =>
  sql`
    with recursive turns (id, previous_response_id) as (
      select id, previous_response_id from responses where id = ${id} and account_id = ${account_id}
      union
      select earlier.id, earlier.previous_response_id from responses earlier
        join turns on earlier.id = turns.previous_response_id
        where earlier.account_id = ${account_id}
    )
    update responses set used_at = ${used_at} where id in (select id from turns)`.execute(trx)

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

export const inputOf = (row: Row<'responses'>) => fromJson(row.input_json)
export const responseOf = (row: Row<'responses'>) => fromJson(row.response_json)
