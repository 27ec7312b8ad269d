// The limits of an account's tier: requests per minute (a window that opens with its first request), requests per UTC
// day, and concurrent requests and jobs.
import type { Logger } from 'pino'
import { after } from '../../../lib/after.ts'
import { runPeriodically } from '../../../lib/periodic.ts'
import { endOfDay } from '../../../lib/utc-day.ts'
import type { Db } from '../db/open.ts'
import type { Caller } from '../http/caller.ts'
import type { Admission, Limits as HttpLimits, Refusal, Window } from '../http/limits.ts'
import type { Plans } from '../plans.ts'
import type { Changes } from '../redis/changes.ts'
import type { Redis } from '../redis/connection.ts'
import { type Bounds, type Counters, type Counts, createLocalCounters, type Demand } from './counters.ts'
import type { CountListener } from './daily-quota.ts'
import { RedisCounters } from './redis-counters.ts'

interface WindowUsage {
  used: number
  /** Null is unlimited. */
  limit: number | null
  resets_at: number
}

interface Account {
  account_id: string
  tier: string
}

/**
 * Reads of a member's sessions in a minute: some hundred open tabs. They are bounded in every tier, as a script with a
 * session's cookie could read without end.
 */
export const sessionReadsPerMinute = 1200
const flush_ms = 1000

interface Options {
  db: Db
  plans: Plans
  log: Logger
  /** Where all processes of the installation count together. */
  shared?: { redis: Redis; changes: Changes } | undefined
  /** Whether several processes may share the database. */
  several?: boolean
  onCounted?: CountListener
  now?: () => number
}

export class Limits implements HttpLimits {
  private readonly options: Options
  private readonly now: () => number
  private readonly counters: Counters
  /** Streams of events that are open at this process, by account: they hold its connections. */
  private readonly eventStreams = new Map<string, number>()

  constructor(options: Options) {
    this.options = options
    const { db, log, shared, several = false, onCounted = async () => {}, now = Date.now } = options
    this.now = now
    this.counters = shared
      ? new RedisCounters(shared.redis, shared.changes, db, log, now, onCounted)
      : createLocalCounters(db, log, now, several, onCounted)
  }

  admit({ account_id, tier, version }: Caller, { slot }: { slot: boolean }): Promise<Admission> | Admission {
    const bounds = this.boundsOf(tier)
    const counted = this.counters.count({ account_id, version, bounds, minute: true, day: true, slot })
    return after(counted, (outcome): Admission => {
      if (outcome.outdated) return { outdated: true }
      const { refused, counts, release } = outcome
      return refused ? this.refusal(refused, bounds, counts) : { window: this.tighter(bounds, counts), release }
    })
  }

  async countRequest(account: Account): Promise<Refusal | undefined> {
    const { bounds, outcome } = await this.count(account, { minute: true, day: true })
    return !outcome.outdated && outcome.refused
      ? this.refusal(outcome.refused, bounds, outcome.counts).refused
      : undefined
  }

  async countSessionRead(caller: Caller): Promise<Pick<Admission, 'refused' | 'outdated'>> {
    const read = await this.counters.countRead(caller, caller.version, sessionReadsPerMinute)
    if (read.outdated) return { outdated: true }
    if (read.count <= sessionReadsPerMinute) return {}
    const { resets_at } = read
    return { refused: { limit: 'session_reads_per_minute', max: sessionReadsPerMinute, resets_at } }
  }

  /**
   * Counts one request of a batch towards the day only: it waits for live requests anyway. Resolves with false, without
   * counting it, once the day's limit is reached.
   */
  async countBatchRequest(account: Account): Promise<boolean> {
    const { outcome } = await this.count(account, { day: true })
    return !outcome.outdated && !outcome.refused
  }

  async acquireSlot(account: Account): Promise<(() => void) | undefined> {
    const { outcome } = await this.count(account, { slot: true })
    if (outcome.outdated || outcome.refused) return undefined
    return outcome.release
  }

  acquireEventStream({ account_id, tier }: Account): { release(): void } | { refused: Refusal } {
    const open = this.eventStreams.get(account_id) ?? 0
    const max = this.options.plans.tierOrTightest(tier).max_event_streams
    if (max !== null && open >= max)
      return { refused: { limit: 'max_event_streams', max, resets_at: this.now() + 1000 } }
    this.eventStreams.set(account_id, open + 1)
    return {
      release: () => {
        const left = this.eventStreams.get(account_id)! - 1
        if (left > 0) this.eventStreams.set(account_id, left)
        else this.eventStreams.delete(account_id)
      },
    }
  }

  /** What an account has used in both windows, and what it runs concurrently now. */
  async state(
    account: Account,
  ): Promise<{ minute: WindowUsage; day: WindowUsage; concurrent: { used: number; limit: number | null } }> {
    const { bounds, outcome } = await this.count(account, {})
    if (outcome.outdated) throw new Error('counts without a version cannot be outdated')
    const { minute, minute_resets_at, day, slots } = outcome.counts
    return {
      minute: { used: minute, limit: bounds.minute, resets_at: minute_resets_at },
      day: { used: day, limit: bounds.day, resets_at: endOfDay(this.now()) },
      concurrent: { used: slots, limit: bounds.slots },
    }
  }

  /** Flushes the daily counts periodically. `close()` waits for the current flush and writes the final counts. */
  start(): { close(): Promise<void> } {
    const flushing = runPeriodically(flush_ms, () => this.counters.days.flush())
    return {
      close: async () => {
        await flushing.close()
        await this.counters.days
          .close()
          .catch((error) => this.options.log.error({ err: error }, 'daily request counts could not be written'))
      },
    }
  }

  private boundsOf(tier: string): Bounds {
    const { requests_per_minute, requests_per_day, max_concurrent } = this.options.plans.tierOrTightest(tier)
    return { minute: requests_per_minute, day: requests_per_day, slots: max_concurrent }
  }

  /** Without a version the outcome is never outdated. */
  private async count({ account_id, tier }: Account, demand: Omit<Demand, 'account_id' | 'version' | 'bounds'>) {
    const bounds = this.boundsOf(tier)
    return { bounds, outcome: await this.counters.count({ account_id, version: undefined, bounds, ...demand }) }
  }

  private window(limit: number | null, used: number, resets_at: number): Window | undefined {
    return limit === null ? undefined : { limit, remaining: Math.max(0, limit - used), resets_at }
  }

  private remainingShare({ limit, remaining }: Window) {
    return remaining / limit
  }

  /** The window with the smaller share left. */
  private tighter(bounds: Bounds, { minute, minute_resets_at, day }: Counts): Window | undefined {
    const a = this.window(bounds.minute, minute, minute_resets_at)
    const b = this.window(bounds.day, day, endOfDay(this.now()))
    return a && b ? (this.remainingShare(b) < this.remainingShare(a) ? b : a) : (a ?? b)
  }

  private refusal(
    refused: keyof Bounds,
    bounds: Bounds,
    counts: Counts,
  ): { window: Window | undefined; refused: Refusal } {
    const max = bounds[refused] ?? 0
    if (refused === 'slots')
      return {
        window: this.tighter(bounds, counts),
        // A slot is released when any answer ends, which cannot be predicted: suggest a retry in one second.
        refused: { limit: 'max_concurrent', max, resets_at: this.now() + 1000 },
      }
    const resets_at = refused === 'day' ? endOfDay(this.now()) : counts.minute_resets_at
    const limit = refused === 'day' ? ('requests_per_day' as const) : ('requests_per_minute' as const)
    return { window: { limit: max, remaining: 0, resets_at }, refused: { limit, max, resets_at } }
  }
}
