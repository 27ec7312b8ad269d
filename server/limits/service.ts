// The limits of an account's tier: a minute's window that opens with its first request, the UTC day, and what is under
// way at once.
import type { Logger } from 'pino'
import { RateLimiterMemory } from 'rate-limiter-flexible'
import { endOfDay } from '../../lib/utc-day.ts'
import type { Db } from '../db/open.ts'
import type { Limits as HttpLimits, Window } from '../http/limits.ts'
import type { Plans } from '../plans.ts'
import { createDays, type Days } from './daily-quota.ts'

interface Used {
  used: number
  /** Null is unlimited. */
  limit: number | null
  resets_at: number
}

export interface Limits extends HttpLimits {
  /** What an account has used in both windows, and has under way now. */
  state(account: {
    account_id: string
    tier: string
  }): Promise<{ minute: Used; day: Used; concurrent: { used: number; limit: number | null } }>
  onCounted: Days['onCounted']
  /** Writes now and then what was counted, until what it returns is closed. */
  start(): { close(): Promise<void> }
}

const minute_s = 60
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
  // The tiers' own numbers are compared with what it has counted, as an account may change its tier within a window.
  const minutes = new RateLimiterMemory({ points: Number.MAX_SAFE_INTEGER, duration: minute_s })
  const days = createDays(db, log, now)
  const slots = createSlots()
  const tierOf = plans.tierOrTightest

  const window = (limit: number | null, used: number, resets_at: number): Window | undefined =>
    limit === null ? undefined : { limit, remaining: Math.max(0, limit - used), resets_at }
  const share = ({ limit, remaining }: Window) => remaining / limit
  const tighter = (a: Window | undefined, b: Window | undefined) => (a && b ? (share(b) < share(a) ? b : a) : (a ?? b))

  async function state({ account_id, tier }: { account_id: string; tier: string }) {
    const { requests_per_minute, requests_per_day, max_concurrent } = tierOf(tier)
    const minute = await minutes.get(account_id)
    const resets_at = now() + (minute ? Math.max(0, minute.msBeforeNext) : minute_s * 1000)
    // What was refused counts there too, and is not told.
    const used = Math.min(minute?.consumedPoints ?? 0, requests_per_minute ?? Number.MAX_SAFE_INTEGER)
    return {
      minute: { used, limit: requests_per_minute, resets_at },
      day: { used: await days.used(account_id), limit: requests_per_day, resets_at: endOfDay(now()) },
      concurrent: { used: slots.used(account_id), limit: max_concurrent },
    }
  }

  return {
    async admit(caller) {
      const { account_id } = caller
      const { requests_per_minute, requests_per_day } = tierOf(caller.tier)
      const ofDay = await days.admit(account_id, requests_per_day)
      if (ofDay === undefined) {
        const resets_at = endOfDay(now())
        const max = requests_per_day!
        return {
          window: { limit: max, remaining: 0, resets_at },
          refused: { limit: 'requests_per_day', max, resets_at },
        }
      }
      const { consumedPoints, msBeforeNext } = await minutes.consume(account_id)
      const resets_at = now() + msBeforeNext
      if (requests_per_minute !== null && consumedPoints > requests_per_minute) {
        days.takeBack(account_id)
        const max = requests_per_minute
        return {
          window: { limit: max, remaining: 0, resets_at },
          refused: { limit: 'requests_per_minute', max, resets_at },
        }
      }
      return {
        window: tighter(
          window(requests_per_minute, consumedPoints, resets_at),
          window(requests_per_day, ofDay, endOfDay(now())),
        ),
      }
    },

    async window(caller) {
      const { minute, day } = await state(caller)
      return tighter(window(minute.limit, minute.used, minute.resets_at), window(day.limit, day.used, day.resets_at))
    },

    slot: ({ account_id, tier }) => slots.take(account_id, tierOf(tier).max_concurrent),
    concurrency: (tier) => tierOf(tier).max_concurrent,
    state,
    onCounted: days.onCounted,

    start() {
      let flushing = Promise.resolve()
      const timer = setInterval(() => {
        flushing = flushing.then(days.flush)
      }, flush_ms).unref()
      return {
        async close() {
          clearInterval(timer)
          await flushing
          await days.close().catch((error) => log.error({ err: error }, 'the day’s requests could not be written'))
        },
      }
    },
  }
}

/**
 * Counts what each account has under way. In this process's memory: what a killed process held is free again when the
 * next one starts.
 */
export interface Slots {
  /** Takes one of `max` places; the result gives it back, once. Undefined where all are taken. */
  take(account_id: string, max: number | null): (() => void) | undefined
  used(account_id: string): number
}

export function createSlots(): Slots {
  const taken = new Map<string, number>()
  const used = (account_id: string) => taken.get(account_id) ?? 0
  return {
    used,
    take(account_id, max) {
      if (max !== null && used(account_id) >= max) return undefined
      taken.set(account_id, used(account_id) + 1)
      let given = false
      return () => {
        if (given) return
        given = true
        const left = used(account_id) - 1
        if (left > 0) taken.set(account_id, left)
        else taken.delete(account_id)
      }
    },
  }
}
