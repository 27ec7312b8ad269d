// The limits of an account's tier: requests per minute (a window that opens with its first request), requests per UTC
// day, and concurrent requests and jobs.
import type { Logger } from 'pino'
import { RateLimiterMemory } from 'rate-limiter-flexible'
import { runPeriodically } from '../../lib/periodic.ts'
import { endOfDay } from '../../lib/utc-day.ts'
import type { Db } from '../db/open.ts'
import type { Limits as HttpLimits, Window } from '../http/limits.ts'
import type { Plans } from '../plans.ts'
import { createDailyQuota, type DailyQuota } from './daily-quota.ts'

interface WindowUsage {
  used: number
  /** Null is unlimited. */
  limit: number | null
  resets_at: number
}

export interface Limits extends HttpLimits {
  /** What an account has used in both windows, and what it runs concurrently now. */
  state(account: {
    account_id: string
    tier: string
  }): Promise<{ minute: WindowUsage; day: WindowUsage; concurrent: { used: number; limit: number | null } }>
  /**
   * Counts one request of a batch towards the day only: it waits for live requests anyway. Resolves with false, without
   * counting it, once the day's limit is reached.
   */
  countBatchRequest(account: { account_id: string; tier: string }): Promise<boolean>
  onCounted: DailyQuota['onCounted']
  /** Flushes the daily counts periodically. `close()` waits for the current flush and writes the final counts. */
  start(): { close(): Promise<void> }
}

const minute_s = 60
/**
 * Reads of a member's sessions in a minute: some hundred open tabs. They are bounded in every tier, as a script with a
 * session's cookie could read without end.
 */
export const sessionReadsPerMinute = 1200
const flush_ms = 1000

export function createLimits({
  db,
  plans,
  log,
  now = Date.now,
}: {
  db: Db
  plans: Plans
  log: Logger
  now?: () => number
}): Limits {
  // The limiter only counts. The tier's limit is compared here, because an account may change its tier within a window.
  const minuteWindows = new RateLimiterMemory({ points: Number.MAX_SAFE_INTEGER, duration: minute_s })
  const sessionReads = new RateLimiterMemory({ points: Number.MAX_SAFE_INTEGER, duration: minute_s })
  const dailyQuota = createDailyQuota(db, log, now)
  const slots = createConcurrencySlots()
  const tierOf = plans.tierOrTightest

  const window = (limit: number | null, used: number, resets_at: number): Window | undefined =>
    limit === null ? undefined : { limit, remaining: Math.max(0, limit - used), resets_at }
  const remainingShare = ({ limit, remaining }: Window) => remaining / limit
  const tighter = (a: Window | undefined, b: Window | undefined) =>
    a && b ? (remainingShare(b) < remainingShare(a) ? b : a) : (a ?? b)

  async function state({ account_id, tier }: { account_id: string; tier: string }) {
    const { requests_per_minute, requests_per_day, max_concurrent } = tierOf(tier)
    const minute = await minuteWindows.get(account_id)
    const resets_at = now() + (minute ? Math.max(0, minute.msBeforeNext) : minute_s * 1000)
    // The limiter also counts refused requests: do not report those.
    const used = Math.min(minute?.consumedPoints ?? 0, requests_per_minute ?? Number.MAX_SAFE_INTEGER)
    return {
      minute: { used, limit: requests_per_minute, resets_at },
      day: { used: await dailyQuota.used(account_id), limit: requests_per_day, resets_at: endOfDay(now()) },
      concurrent: { used: slots.used(account_id), limit: max_concurrent },
    }
  }

  return {
    async countRequest(caller) {
      const { account_id } = caller
      const { requests_per_minute, requests_per_day } = tierOf(caller.tier)
      const usedToday = await dailyQuota.admit(account_id, requests_per_day)
      if (usedToday === undefined) {
        const resets_at = endOfDay(now())
        const max = requests_per_day!
        return {
          window: { limit: max, remaining: 0, resets_at },
          refused: { limit: 'requests_per_day', max, resets_at },
        }
      }
      const { consumedPoints, msBeforeNext } = await minuteWindows.consume(account_id)
      const resets_at = now() + msBeforeNext
      if (requests_per_minute !== null && consumedPoints > requests_per_minute) {
        dailyQuota.refund(account_id)
        const max = requests_per_minute
        return {
          window: { limit: max, remaining: 0, resets_at },
          refused: { limit: 'requests_per_minute', max, resets_at },
        }
      }
      return {
        window: tighter(
          window(requests_per_minute, consumedPoints, resets_at),
          window(requests_per_day, usedToday, endOfDay(now())),
        ),
      }
    },

    async countSessionRead({ user_id }) {
      const { consumedPoints, msBeforeNext } = await sessionReads.consume(user_id)
      if (consumedPoints <= sessionReadsPerMinute) return undefined
      return { limit: 'session_reads_per_minute', max: sessionReadsPerMinute, resets_at: now() + msBeforeNext }
    },

    countBatchRequest: async ({ account_id, tier }) =>
      (await dailyQuota.admit(account_id, tierOf(tier).requests_per_day)) !== undefined,

    async window(caller) {
      const { minute, day } = await state(caller)
      return tighter(window(minute.limit, minute.used, minute.resets_at), window(day.limit, day.used, day.resets_at))
    },

    acquireSlot: ({ account_id, tier }) => slots.acquire(account_id, tierOf(tier).max_concurrent),
    concurrency: (tier) => tierOf(tier).max_concurrent,
    state,
    onCounted: dailyQuota.onCounted,

    start() {
      const flushing = runPeriodically(flush_ms, dailyQuota.flush)
      return {
        async close() {
          await flushing.close()
          await dailyQuota
            .close()
            .catch((error) => log.error({ err: error }, 'daily request counts could not be written'))
        },
      }
    },
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
