// What counts an account's requests and slots: this process alone, or a Redis that several processes share.
import type { Logger } from 'pino'
import { RateLimiterMemory } from 'rate-limiter-flexible'
import type { Db } from '../db/open.ts'
import { createDailyQuota, type DailyQuota } from './daily-quota.ts'
import { createSharedDailyQuota } from './shared-daily-quota.ts'

/** The limits of a tier. Null is unlimited. */
export interface Bounds {
  minute: number | null
  day: number | null
  slots: number | null
}

export interface Demand {
  account_id: string
  /** The account's version at which the caller was read; undefined: any will do. */
  version: string | undefined
  bounds: Bounds
  /** What to count. Without any of these, only the counts are read. */
  minute?: boolean
  day?: boolean
  slot?: boolean
}

/** Counts after the request. `minute_resets_at` is in unix milliseconds. */
export interface Counts {
  minute: number
  minute_resets_at: number
  day: number
  slots: number
}

/** If anything is refused, or the account has changed since the caller was read, nothing is counted. */
export type Outcome =
  | { outdated: true }
  | { outdated?: undefined; refused?: keyof Bounds; counts: Counts; release?: (() => void) | undefined }

export interface Counters {
  count(demand: Demand): Promise<Outcome>
  /** Counts one read of a member's sessions. Replies the count of its minute. */
  countRead(
    user: { account_id: string; user_id: string },
    version: string | undefined,
    max: number,
  ): Promise<{ outdated: true } | { outdated?: undefined; count: number; resets_at: number }>
  /** The counts of the day: flushed each second, written at the end. */
  days: Pick<DailyQuota, 'flush' | 'close' | 'onCounted'>
}

export const minute_s = 60

/** Counts in this process. `several`: other processes count the same accounts' days in the same database. */
export function createLocalCounters(db: Db, log: Logger, now: () => number, several: boolean): Counters {
  // The limiter only counts. The tier's limit is compared here, because an account may change its tier within a window.
  const minutes = new RateLimiterMemory({ points: Number.MAX_SAFE_INTEGER, duration: minute_s })
  const reads = new RateLimiterMemory({ points: Number.MAX_SAFE_INTEGER, duration: minute_s })
  const quota = several ? createSharedDailyQuota(db, log, now) : createDailyQuota(db, log, now)
  const slots = createConcurrencySlots()

  /** Of a demand for a slot alone, only that is told. */
  async function countsOf({ account_id, bounds, minute: m, day: d, slot }: Demand): Promise<Counts> {
    if (slot && !m && !d) return { minute: 0, minute_resets_at: 0, day: 0, slots: slots.used(account_id) }
    const minute = await minutes.get(account_id)
    return {
      // The limiter also counts refused requests: do not report those.
      minute: Math.min(minute?.consumedPoints ?? 0, bounds.minute ?? Number.MAX_SAFE_INTEGER),
      minute_resets_at: now() + (minute ? Math.max(0, minute.msBeforeNext) : minute_s * 1000),
      day: await quota.used(account_id),
      slots: slots.used(account_id),
    }
  }

  return {
    async count(demand) {
      const { account_id, bounds, minute, day, slot } = demand
      const release = slot ? slots.acquire(account_id, bounds.slots) : undefined
      if (slot && !release) return { refused: 'slots', counts: await countsOf(demand) }
      const used = day ? await quota.admit(account_id, bounds.day) : undefined
      if (day && used === undefined) {
        release?.()
        return { refused: 'day', counts: await countsOf(demand) }
      }
      if (!minute) return { counts: await countsOf(demand), release }
      const { consumedPoints, msBeforeNext } = await minutes.consume(account_id)
      if (bounds.minute !== null && consumedPoints > bounds.minute) {
        if (day) quota.refund(account_id)
        release?.()
        return { refused: 'minute', counts: await countsOf(demand) }
      }
      const counts = {
        minute: consumedPoints,
        minute_resets_at: now() + msBeforeNext,
        day: used ?? 0,
        slots: slots.used(account_id),
      }
      return { counts, release }
    },
    async countRead({ user_id }) {
      const { consumedPoints, msBeforeNext } = await reads.consume(user_id)
      return { count: consumedPoints, resets_at: now() + msBeforeNext }
    },
    days: quota,
  }
}

/** Concurrency slots per account, in this process's memory: all slots are free again after a restart. */
export interface ConcurrencySlots {
  /** Acquires one of `max` slots and returns its release function, or undefined if none is free. Null is unlimited. */
  acquire(account_id: string, max: number | null): (() => void) | undefined
  used(account_id: string): number
}

export function createConcurrencySlots(): ConcurrencySlots {
  const inUse = new Map<string, number>()
  const used = (account_id: string) => inUse.get(account_id) ?? 0
  return {
    used,
    acquire(account_id, max) {
      if (max !== null && used(account_id) >= max) return undefined
      inUse.set(account_id, used(account_id) + 1)
      let released = false
      return () => {
        if (released) return
        released = true
        const left = used(account_id) - 1
        if (left > 0) inUse.set(account_id, left)
        else inUse.delete(account_id)
      }
    },
  }
}
