import { sql } from 'kysely'
import type { Db, Trx } from '../db/open.ts'
import type { NewRow, Row } from '../db/schema.ts'

/** Adds rows; one whose request is there already changes nothing. */
export const insert = (trx: Trx, rows: NewRow<'usage'>[]) =>
  trx
    .insertInto('usage')
    .values(rows)
    .onConflict((conflict) => conflict.column('request_id').doNothing())
    .execute()

export const byRequest = (db: Db, account_id: string, request_id: string): Promise<Row<'usage'> | undefined> =>
  db.selectFrom('usage').selectAll().where('account_id', '=', account_id).where('request_id', '=', request_id).executeTakeFirst()

export const totals = (db: Db, account_id: string, from: number, to: number) =>
  db
    .selectFrom('usage')
    .select((eb) => [
      eb.fn.countAll<number>().as('requests'),
      sql<number>`coalesce(sum(prompt_tokens), 0)`.as('prompt_tokens'),
      sql<number>`coalesce(sum(completion_tokens), 0)`.as('completion_tokens'),
      sql<number>`coalesce(sum(cached_tokens), 0)`.as('cached_tokens'),
    ])
    .where('account_id', '=', account_id)
    .where('created_at', '>=', from)
    .where('created_at', '<', to)
    .executeTakeFirstOrThrow()
