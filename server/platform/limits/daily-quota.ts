// Daily request quota per account. Requests are counted in memory and reserved in the database in advance, so the
// database never holds fewer than were admitted: a killed process cannot exceed the limit, and wastes at most the
// requests it had reserved.
import { setTimeout as sleep } from 'node:timers/promises'
import type { Logger } from 'pino'
import { startOfDay } from '../../../lib/utc-day.ts'
import type { Db } from '../db/open.ts'

export interface DailyQuota {
  /**
   * Counts one request. Replies its number within the UTC day, or undefined, without counting it, once `limit` is
   * reached; at once while requests are reserved. A null limit is unlimited.
   */
  admit(account_id: string, limit: number | null): Promise<number | undefined> | number | undefined
  /** Uncounts one request that was refused after `admit`. */
  refund(account_id: string): void
  used(account_id: string): Promise<number>
  /** Writes the counts of unlimited accounts, as limited ones are written ahead, and reports all that have changed. */
  flush(): Promise<void>
  /** Writes the exact counts. Call it once no more requests come. */
  close(): Promise<void>
}

/** Receives an account's request count of the day, with its limit: at a flush, if the count has changed. */
export type CountListener = (account_id: string, day: number, requests: number, limit: number | null) => Promise<void>

interface Count {
  day: number
  used: number
  /** The count in the database: at or above `used` for an account with a limit, at or below it for others. */
  persisted: number
  notified: number
  limit: number | null
  reserving: Promise<void> | undefined
}

/** The longest that a request waits for the database. */
export const databaseWait_ms = 250
/** The share of the daily limit that one write reserves: the most that a killed process wastes. */
const reserveShare = 1 / 200

export function createDailyQuota(db: Db, log: Logger, now: () => number, onCounted: CountListener): DailyQuota {
  const counts = new Map<string, Count>()
  const loading = new Map<string, Promise<Count>>()

  async function write(account_id: string, count: Count): Promise<void> {
    const { day, used } = count
    await setRequests(db, account_id, day, used)
    count.persisted = used
  }

  async function notify(account_id: string, count: Count): Promise<void> {
    const { day, used, limit } = count
    if (used === count.notified) return
    await onCounted(account_id, day, used, limit)
    count.notified = used
  }

  /** Writes and reports the last count of a day that has ended. */
  const closeDay = (account_id: string, count: Count) =>
    Promise.all([count.used !== count.persisted && write(account_id, count), notify(account_id, count)]).catch(
      (error) => log.warn({ err: error, account_id }, 'the final request count of a day could not be written'),
    )

  async function load(account_id: string, day: number): Promise<Count> {
    const previous = counts.get(account_id)
    if (previous) await closeDay(account_id, previous)
    const used = await requestsOf(db, account_id, day)
    const count: Count = { day, used, persisted: used, notified: used, limit: null, reserving: undefined }
    counts.set(account_id, count)
    return count
  }

  function countOf(account_id: string): Count | Promise<Count> {
    const day = startOfDay(now())
    const known = counts.get(account_id)
    if (known?.day === day) return known
    const name = `${account_id} ${day}`
    const pending = loading.get(name) ?? load(account_id, day).finally(() => loading.delete(name))
    loading.set(name, pending)
    return pending
  }

  /**
   * Reserves requests in the database. If the write fails, requests are still admitted; those counted in the meantime
   * are lost if the process is killed.
   */
  function reserve(account_id: string, count: Count, limit: number): Promise<void> {
    const target = Math.min(limit, count.used + Math.max(1, Math.ceil(limit * reserveShare)))
    count.reserving ??= setRequests(db, account_id, count.day, target)
      .catch((error) =>
        log.warn({ err: error, account_id }, 'daily request counts could not be written; they stay in memory'),
      )
      .then(() => {
        count.persisted = Math.max(target, count.used)
        count.reserving = undefined
      })
    return count.reserving
  }

  /** Waits for the count of the day, or for requests to be reserved. */
  async function admitSlowly(account_id: string, limit: number | null): Promise<number | undefined> {
    for (;;) {
      const count = await countOf(account_id)
      count.limit = limit
      if (limit !== null && count.used < limit && count.used >= count.persisted) {
        await Promise.race([reserve(account_id, count, limit), sleep(databaseWait_ms)])
        // Do not block requests on a locked database: count them in memory until it can be written.
        if (count.reserving && count.day === startOfDay(now())) return count.used < limit ? ++count.used : undefined
        // Retry: the day may have ended during the wait.
        continue
      }
      return admitNow(account_id, count, limit)
    }
  }

  function admitNow(account_id: string, count: Count, limit: number | null): number | undefined {
    if (limit !== null) {
      if (count.used >= limit) return undefined
      if (count.persisted < limit && count.persisted - count.used <= (limit * reserveShare) / 2)
        void reserve(account_id, count, limit)
    }
    return ++count.used
  }

  return {
    admit(account_id, limit) {
      const count = countOf(account_id)
      if (count instanceof Promise || (limit !== null && count.used >= count.persisted))
        return admitSlowly(account_id, limit)
      count.limit = limit
      return admitNow(account_id, count, limit)
    },

    refund(account_id) {
      const count = counts.get(account_id)
      if (count && count.used > 0) count.used--
    },

    used: async (account_id) => (await countOf(account_id)).used,

    async flush() {
      for (const [account_id, count] of counts) {
        if (count.used === count.notified) continue
        try {
          if (count.limit === null) await write(account_id, count)
          await notify(account_id, count)
        } catch (error) {
          log.warn(
            { err: error, account_id },
            'daily request counts could not be written or reported; they stay in memory and are retried',
          )
        }
      }
    },

    async close() {
      for (const [account_id, count] of counts) {
        await count.reserving
        if (count.used !== count.persisted) await write(account_id, count)
      }
    },
  }
}

export const requestsOf = async (db: Db, account_id: string, day: number) =>
  Number(
    (
      await db
        .selectFrom('day_counts')
        .select('requests')
        .where('account_id', '=', account_id)
        .where('day', '=', day)
        .executeTakeFirst()
    )?.requests ?? 0,
  )

const setRequests = (db: Db, account_id: string, day: number, requests: number) =>
  db
    .insertInto('day_counts')
    .values({ account_id, day, requests })
    .onConflict((conflict) => conflict.columns(['account_id', 'day']).doUpdateSet({ requests }))
    .execute()
