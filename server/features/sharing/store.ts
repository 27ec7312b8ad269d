import type { ListQuery } from '../../../contract/common.ts'
import type { Db, Queryable, Trx } from '../../platform/db/open.ts'
import { countRows, newestFirst } from '../../platform/db/page.ts'
import type { NewRow, Row } from '../../platform/db/schema.ts'

export type ShareRow = Row<'shares'>

const live = (db: Queryable, account_id: string) =>
  db.selectFrom('shares').selectAll().where('account_id', '=', account_id).where('revoked_at', 'is', null)

export const insert = (trx: Trx, share: NewRow<'shares'>) => trx.insertInto('shares').values(share).execute()

export const countLive = (trx: Trx, account_id: string) => countRows(live(trx, account_id))

export const find = (db: Queryable, account_id: string, model_id: string, id: string) =>
  live(db, account_id).where('model_id', '=', model_id).where('id', '=', id).executeTakeFirst()

export const list = (db: Db, account_id: string, model_id: string, { limit }: ListQuery, after: ShareRow | undefined) =>
  newestFirst(live(db, account_id).where('model_id', '=', model_id), limit, after)

export const revoke = (trx: Trx, id: string, revoked_at: number) =>
  trx.updateTable('shares').set({ revoked_at }).where('id', '=', id).execute()

/** The ids of those of these links that work at `now` and whose models are still there. */
export const liveIds = (db: Db, ids: string[], now: number) =>
  db
    .selectFrom('shares')
    .innerJoin('accounts', 'accounts.id', 'shares.account_id')
    .innerJoin('models', 'models.id', 'shares.model_id')
    .select('shares.id')
    .where('shares.id', 'in', ids)
    .where('shares.revoked_at', 'is', null)
    .where('accounts.suspended_at', 'is', null)
    .where((e) => e.or([e('shares.expires_at', 'is', null), e('shares.expires_at', '>', now)]))
    .execute()

/** The link with this hash and the tier of its account, if it works at `now` and the account is not suspended. */
export const findByHash = (db: Db, hash: string, now: number) =>
  db
    .selectFrom('shares')
    .innerJoin('accounts', 'accounts.id', 'shares.account_id')
    .selectAll('shares')
    .select('accounts.tier')
    .where('hash', '=', hash)
    .where('revoked_at', 'is', null)
    .where((or) => or.or([or('expires_at', 'is', null), or('expires_at', '>', now)]))
    .where('accounts.suspended_at', 'is', null)
    .executeTakeFirst()

export const requestsOn = async (db: Queryable, share_id: string, day: number): Promise<number> =>
  (
    await db
      .selectFrom('share_days')
      .select('requests')
      .where('share_id', '=', share_id)
      .where('day', '=', day)
      .executeTakeFirst()
  )?.requests ?? 0

/** Counts one request. Resolves with false, and counts nothing, if there were `max` on that day. */
export async function countRequest(trx: Trx, share_id: string, day: number, max: number): Promise<boolean> {
  const counted = await trx
    .insertInto('share_days')
    .values({ share_id, day, requests: 1 })
    .onConflict((conflict) =>
      conflict
        .columns(['share_id', 'day'])
        .doUpdateSet((eb) => ({ requests: eb('share_days.requests', '+', 1) }))
        .where('share_days.requests', '<', max),
    )
    .returning('requests')
    .executeTakeFirst()
  return counted !== undefined
}
