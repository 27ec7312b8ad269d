import type { Db } from '../db/open.ts'

export const requestsOf = async (db: Db, account_id: string, day: number) =>
  Number((await db.selectFrom('day_counts').select('requests').where('account_id', '=', account_id).where('day', '=', day).executeTakeFirst())?.requests ?? 0)

export const setRequests = (db: Db, account_id: string, day: number, requests: number) =>
  db
    .insertInto('day_counts')
    .values({ account_id, day, requests })
    .onConflict((conflict) => conflict.columns(['account_id', 'day']).doUpdateSet({ requests }))
    .execute()
