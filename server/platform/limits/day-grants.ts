// Grants of a day's requests, for several processes that count one account. The database adds up what it has granted
// and never exceeds the limit. Who holds a grant (a process, or the Redis that several share) admits requests from it
// without asking again, and gives back what it does not need.
import type { Db } from '../db/open.ts'

/** The most of a day's limit in one grant: what is lost with its holder. */
const largestShare = 1 / 200
/** A grant is the smaller the less is left, so that the last requests are not stranded with another holder. */
const partOfRest = 1 / 64

/** The size of the next grant, of a limit of which `total` is granted: at least 1. */
export const grantSize = (limit: number, total: number) =>
  Math.max(1, Math.floor(Math.min(limit * largestShare, (limit - total) * partOfRest)))

/** Requests granted, and the sum of the day with them. */
export interface Grant {
  granted: number
  total: number
}

/** Grants up to `wanted` requests: fewer, or none, where the limit allows no more. */
export async function grantRequests(
  db: Db,
  account_id: string,
  day: number,
  limit: number,
  requested: number,
): Promise<Grant> {
  return db.transaction().execute(async (trx) => {
    const row = await trx
      .selectFrom('day_counts')
      .select('requests')
      .where('account_id', '=', account_id)
      .where('day', '=', day)
      .executeTakeFirst()
    const before = row?.requests ?? 0
    const granted = Math.max(0, Math.min(requested, limit - before))
    if (granted === 0) return { granted, total: before }
    const updated = await trx
      .insertInto('day_counts')
      .values({ account_id, day, requests: granted })
      .onConflict((conflict) =>
        conflict
          .columns(['account_id', 'day'])
          .doUpdateSet((eb) => ({ requests: eb('day_counts.requests', '+', granted) }))
          // Right also where transactions do not run in turn.
          .where('day_counts.requests', '<=', limit - granted),
      )
      .returning('requests')
      .executeTakeFirst()
    return updated ? { granted, total: updated.requests } : { granted: 0, total: before }
  })
}

/** Adds requests that were admitted without a grant, or takes back what was granted and not used. */
export const addRequests = (db: Db, account_id: string, day: number, requests: number) =>
  db
    .insertInto('day_counts')
    .values({ account_id, day, requests: Math.max(0, requests) })
    .onConflict((conflict) =>
      conflict
        .columns(['account_id', 'day'])
        .doUpdateSet((eb) => ({ requests: eb('day_counts.requests', '+', requests) })),
    )
    .execute()
