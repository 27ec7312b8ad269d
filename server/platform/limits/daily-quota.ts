// Daily request quota per account. Requests are counted in memory and reserved in the database in advance, so the
// database never holds fewer than were admitted: a killed process cannot exceed the limit, and wastes at most the
// requests it had reserved.
import { setTimeout as sleep } from 'node:timers/promises'
import type { Logger } from 'pino'
import { startOfDay } from '../../../lib/utc-day.ts'
import type { Db } from '../db/open.ts'

/** Receives an account's request count of the day, with its limit: at a flush, if the count has changed. */
export type CountListener = (account_id: string, day: number, requests: number, limit: number | null) => Promise<void>

interface Count {
  day: number
  used: number
  /** The count in the database: at or above `used` for an account with a limit, at or below it for others. */
  persisted: number
  /** Admitted without a write up to here: what is reserved, or more while the database fails. */
  reserved: number
  notified: number
  limit: number | null
  reserving: Promise<void> | undefined
}

/** The longest that a request waits for the database. */
export const databaseWait_ms = 250
/** The share of the daily limit that one write reserves: the most that a killed process wastes. */
const reserveShare = 1 / 200

export class DailyQuota {
  private readonly db: Db
  private readonly log: Logger
  private readonly now: () => number
  private readonly onCounted: CountListener
  private readonly counts = new Map<string, Count>()
  private readonly loading = new Map<string, Promise<Count>>()

  constructor(db: Db, log: Logger, now: () => number, onCounted: CountListener) {
    this.db = db
    this.log = log
    this.now = now
    this.onCounted = onCounted
  }

  /**
   * Counts one request. Replies its number within the UTC day, or undefined, without counting it, once `limit` is
   * reached; at once while requests are reserved. A null limit is unlimited.
   */
  admit(account_id: string, limit: number | null): Promise<number | undefined> | number | undefined {
    const count = this.countOf(account_id)
    if (count instanceof Promise || (limit !== null && count.used >= count.reserved))
      return this.admitSlowly(account_id, limit)
    count.limit = limit
    return this.admitNow(account_id, count, limit)
  }

  /** Uncounts one request that was refused after `admit`. */
  refund(account_id: string): void {
    const count = this.counts.get(account_id)
    if (count && count.used > 0) count.used--
  }

  async used(account_id: string): Promise<number> {
    return (await this.countOf(account_id)).used
  }

  /** Writes the counts of unlimited accounts, as limited ones are written ahead, and reports all that have changed. */
  async flush(): Promise<void> {
    for (const [account_id, count] of this.counts) {
      if (count.used === count.notified) continue
      try {
        if (count.limit === null) await this.write(account_id, count)
        await this.notify(account_id, count)
      } catch (error) {
        this.log.warn(
          { err: error, account_id },
          'daily request counts could not be written or reported; they stay in memory and are retried',
        )
      }
    }
  }

  /** Writes the exact counts. Call it once no more requests come. */
  async close(): Promise<void> {
    for (const [account_id, count] of this.counts) {
      await count.reserving
      if (count.used !== count.persisted) await this.write(account_id, count)
    }
  }

  private async write(account_id: string, count: Count): Promise<void> {
    const { day, used } = count
    await setRequests(this.db, account_id, day, used)
    count.persisted = count.reserved = used
  }

  private async notify(account_id: string, count: Count): Promise<void> {
    const { day, used, limit } = count
    if (used === count.notified) return
    await this.onCounted(account_id, day, used, limit)
    count.notified = used
  }

  /** Writes and reports the last count of a day that has ended. */
  private closeDay(account_id: string, count: Count) {
    return Promise.all([
      count.used !== count.persisted && this.write(account_id, count),
      this.notify(account_id, count),
    ]).catch((error) =>
      this.log.warn({ err: error, account_id }, 'the final request count of a day could not be written'),
    )
  }

  private async load(account_id: string, day: number): Promise<Count> {
    const previous = this.counts.get(account_id)
    if (previous) await this.closeDay(account_id, previous)
    const used = await requestsOf(this.db, account_id, day)
    const count: Count = {
      day,
      used,
      persisted: used,
      reserved: used,
      notified: used,
      limit: null,
      reserving: undefined,
    }
    this.counts.set(account_id, count)
    return count
  }

  private countOf(account_id: string): Count | Promise<Count> {
    const day = startOfDay(this.now())
    const known = this.counts.get(account_id)
    if (known?.day === day) return known
    const name = `${account_id} ${day}`
    const pending = this.loading.get(name) ?? this.load(account_id, day).finally(() => this.loading.delete(name))
    this.loading.set(name, pending)
    return pending
  }

  /**
   * Reserves requests in the database. If the write fails, requests are still admitted; those counted in the meantime
   * are lost if the process is killed.
   */
  private reserve(account_id: string, count: Count, limit: number): Promise<void> {
    const target = Math.min(limit, count.used + Math.max(1, Math.ceil(limit * reserveShare)))
    count.reserving ??= setRequests(this.db, account_id, count.day, target)
      .then(() => {
        count.persisted = count.reserved = target
      })
      .catch((error) => {
        this.log.warn({ err: error, account_id }, 'daily request counts could not be written; they stay in memory')
        count.reserved = Math.max(target, count.used)
      })
      .finally(() => {
        count.reserving = undefined
      })
    return count.reserving
  }

  /** Waits for the count of the day, or for requests to be reserved. */
  private async admitSlowly(account_id: string, limit: number | null): Promise<number | undefined> {
    for (;;) {
      const count = await this.countOf(account_id)
      count.limit = limit
      if (limit !== null && count.used < limit && count.used >= count.reserved) {
        await Promise.race([this.reserve(account_id, count, limit), sleep(databaseWait_ms)])
        // Do not block requests on a locked database: count them in memory until it can be written.
        if (count.reserving && count.day === startOfDay(this.now()))
          return count.used < limit ? ++count.used : undefined
        // Retry: the day may have ended during the wait.
        continue
      }
      return this.admitNow(account_id, count, limit)
    }
  }

  private admitNow(account_id: string, count: Count, limit: number | null): number | undefined {
    if (limit !== null) {
      if (count.used >= limit) return undefined
      if (count.reserved < limit && count.reserved - count.used <= (limit * reserveShare) / 2)
        void this.reserve(account_id, count, limit)
    }
    return ++count.used
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
