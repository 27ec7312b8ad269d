// What counts an account's requests and slots: this process alone, or a Redis that several processes share.
import type { Logger } from 'pino'
import { after } from '../../../lib/after.ts'
import type { Db } from '../db/open.ts'
import { createFixedWindows } from '../redis/window-counter.ts'
import { type CountListener, DailyQuota } from './daily-quota.ts'
import { minute_ms } from './scripts.ts'
import { SharedDailyQuota } from './shared-daily-quota.ts'

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
  /** At once where nothing has to be read: every request waits for it. */
  count(demand: Demand): Promise<Outcome> | Outcome
  /** Counts one read of a member's sessions. Replies the count of its minute. */
  countRead(
    user: { account_id: string; user_id: string },
    version: string | undefined,
    max: number,
  ): Promise<{ outdated: true } | { outdated?: undefined; count: number; resets_at: number }>
  /** The counts of the day: flushed each second, written at the end. */
  days: Pick<DailyQuota, 'flush' | 'close'>
}

/** Counts in this process. `several`: other processes count the same accounts' days in the same database. */
export function createLocalCounters(
  db: Db,
  log: Logger,
  now: () => number,
  several: boolean,
  onCounted: CountListener,
): Counters {
  // The tier's limit is compared here, because an account may change its tier within a window.
  const minutes = createFixedWindows(minute_ms, now)
  const reads = createFixedWindows(minute_ms, now)
  const quota = several ? new SharedDailyQuota(db, log, now, onCounted) : new DailyQuota(db, log, now, onCounted)
  const slots = createConcurrencySlots()

  /** Demands for a slot alone report only the slots in use. */
  async function countsOf({ account_id, bounds, minute: m, day: d, slot }: Demand): Promise<Counts> {
    if (slot && !m && !d) return { minute: 0, minute_resets_at: 0, day: 0, slots: slots.used(account_id) }
    const minute = minutes.get(account_id)
    return {
      // The window also counts refused requests: do not report those.
      minute: Math.min(minute?.count ?? 0, bounds.minute ?? Number.MAX_SAFE_INTEGER),
      minute_resets_at: minute?.resets_at ?? now() + minute_ms,
      day: await quota.used(account_id),
      slots: slots.used(account_id),
    }
  }

  const refuse = async (demand: Demand, refused: keyof Bounds): Promise<Outcome> => ({
    refused,
    counts: await countsOf(demand),
  })

  /** `used`: the request's number within the day, undefined if the day's limit is reached. */
  function countMinute(demand: Demand, release: (() => void) | undefined, used: number | undefined) {
    const { account_id, bounds, minute, day } = demand
    if (day && used === undefined) {
      release?.()
      return refuse(demand, 'day')
    }
    if (!minute) return countsOf(demand).then((counts): Outcome => ({ counts, release }))
    const { count, resets_at } = minutes.add(account_id)
    if (bounds.minute !== null && count > bounds.minute) {
      if (day) quota.refund(account_id)
      release?.()
      return refuse(demand, 'minute')
    }
    const counts = { minute: count, minute_resets_at: resets_at, day: used ?? 0, slots: slots.used(account_id) }
    return { counts, release }
  }

  return {
    count(demand) {
      const { account_id, bounds, day, slot } = demand
      const release = slot ? slots.acquire(account_id, bounds.slots) : undefined
      if (slot && !release) return refuse(demand, 'slots')
      const used = day ? quota.admit(account_id, bounds.day) : undefined
      return after(used, (number) => countMinute(demand, release, number))
    },
    async countRead({ user_id }) {
      return { ...reads.add(user_id) }
    },
    days: quota,
  }
}

/** Concurrency slots per account, in this process's memory: all slots are free again after a restart. */
interface ConcurrencySlots {
  /** Acquires one of `max` slots and returns its release function, or undefined if none is free. Null is unlimited. */
  acquire(account_id: string, max: number | null): (() => void) | undefined
  used(account_id: string): number
}

function createConcurrencySlots(): ConcurrencySlots {
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
