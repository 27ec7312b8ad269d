// Requests of the UTC day, counted in memory and written ahead: the database always holds at least as many as were
// admitted, so that a killed process admits no more than the day allows, and loses at most what it had written ahead.
import { setTimeout as sleep } from 'node:timers/promises'
import type { Logger } from 'pino'
import { startOfDay } from '../../lib/utc-day.ts'
import type { Db } from '../db/open.ts'

export interface Days {
  /**
   * Counts one request. Resolves with which of the day it is; with undefined, and nothing counted, where `limit` of the
   * day have been counted.
   */
  admit(account_id: string, limit: number | null): Promise<number | undefined>
  /** Takes one back that was counted last, of a request that was refused after all. */
  takeBack(account_id: string): void
  used(account_id: string): Promise<number>
  /** Writes what was counted and tells of it; of a limited account only tells, as more than that is written already. */
  flush(): Promise<void>
  /** Writes what was counted to the last request, when no more of them come. */
  close(): Promise<void>
  /** Calls for accounts whose count has changed, now and then. */
  onCounted(listener: CountListener): void
}

/** Hears how many requests of the day an account has made, of how many. */
export type CountListener = (account_id: string, day: number, requests: number, limit: number | null) => Promise<void>

interface Count {
  day: number
  used: number
  /** What the database holds: ahead of what was used in an account with a limit, behind it in others. */
  written: number
  told: number
  limit: number | null
  extending: Promise<void> | undefined
}

/** How long a request waits until the database has been written. */
const patience_ms = 250
/** The part of a day's limit that is written ahead: what a killed process may lose. */
const ahead = 1 / 200

export function createDays(db: Db, log: Logger, now: () => number): Days {
  const counts = new Map<string, Count>()
  const loading = new Map<string, Promise<Count>>()

  const listeners: CountListener[] = []

  async function write(account_id: string, count: Count): Promise<void> {
    const { day, used } = count
    await setRequests(db, account_id, day, used)
    count.written = used
  }

  async function tell(account_id: string, count: Count): Promise<void> {
    const { day, used, limit } = count
    if (used === count.told) return
    for (const listener of listeners) await listener(account_id, day, used, limit)
    count.told = used
  }

  /** A day has ended: its last count is written and told. */
  const settle = (account_id: string, count: Count) =>
    Promise.all([count.used !== count.written && write(account_id, count), tell(account_id, count)]).catch((error) =>
      log.warn({ err: error, account_id }, 'the last requests of a day could not be written'),
    )

  async function load(account_id: string, day: number): Promise<Count> {
    const before = counts.get(account_id)
    if (before) await settle(account_id, before)
    const used = await requestsOf(db, account_id, day)
    const count: Count = { day, used, written: used, told: used, limit: null, extending: undefined }
    counts.set(account_id, count)
    return count
  }

  function countOf(account_id: string): Count | Promise<Count> {
    const day = startOfDay(now())
    const known = counts.get(account_id)
    if (known?.day === day) return known
    const name = `${account_id} ${day}`
    const under = loading.get(name) ?? load(account_id, day).finally(() => loading.delete(name))
    loading.set(name, under)
    return under
  }

  /**
   * Writes ahead. Where the database cannot be written the service goes on: after a kill some requests of that time
   * would not be known.
   */
  function extend(account_id: string, count: Count, limit: number): Promise<void> {
    const target = Math.min(limit, count.used + Math.max(1, Math.ceil(limit * ahead)))
    count.extending ??= setRequests(db, account_id, count.day, target)
      .catch((error) =>
        log.warn({ err: error, account_id }, 'the day’s requests could not be written; they are counted in memory'),
      )
      .then(() => {
        count.written = Math.max(target, count.used)
        count.extending = undefined
      })
    return count.extending
  }

  return {
    async admit(account_id, limit) {
      for (;;) {
        const count = await countOf(account_id)
        count.limit = limit
        if (limit !== null) {
          if (count.used >= limit) return undefined
          if (count.used >= count.written) {
            await Promise.race([extend(account_id, count, limit), sleep(patience_ms)])
            // A database that is locked for long holds up no request: those are counted in memory until it can be
            // written.
            if (count.extending && count.day === startOfDay(now())) return count.used < limit ? ++count.used : undefined
            // The day may have ended meanwhile.
            continue
          }
          if (count.written < limit && count.written - count.used <= (limit * ahead) / 2)
            void extend(account_id, count, limit)
        }
        return ++count.used
      }
    },

    takeBack(account_id) {
      const count = counts.get(account_id)
      if (count && count.used > 0) count.used--
    },

    used: async (account_id) => (await countOf(account_id)).used,

    async flush() {
      for (const [account_id, count] of counts) {
        if (count.used === count.told) continue
        try {
          if (count.limit === null) await write(account_id, count)
          await tell(account_id, count)
        } catch (error) {
          log.warn(
            { err: error, account_id },
            'the day’s requests could not be written or told; they are counted in memory and tried again',
          )
        }
      }
    },

    async close() {
      for (const [account_id, count] of counts) {
        await count.extending
        if (count.used !== count.written) await write(account_id, count)
      }
    },

    onCounted: (listener) => void listeners.push(listener),
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

export const setRequests = (db: Db, account_id: string, day: number, requests: number) =>
  db
    .insertInto('day_counts')
    .values({ account_id, day, requests })
    .onConflict((conflict) => conflict.columns(['account_id', 'day']).doUpdateSet({ requests }))
    .execute()
