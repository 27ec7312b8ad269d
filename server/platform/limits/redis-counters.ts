// Counts in a Redis that several processes share: exact, in one round trip per request. The database grants the day's
// requests in advance, so that a Redis that loses its data cannot admit them twice.
import { setImmediate as immediate, setTimeout as sleep } from 'node:timers/promises'
import type { Logger } from 'pino'
import { startOfDay } from '../../../lib/utc-day.ts'
import type { Db } from '../db/open.ts'
import { type Changes, newVersion, versionKey } from '../redis/changes.ts'
import { type Beat, type Redis, RedisAway } from '../redis/connection.ts'
import { createFixedWindows, type FixedWindows } from '../redis/window-counter.ts'
import type { Counters, Demand, Outcome } from './counters.ts'
import { type CountListener, databaseWait_ms, requestsOf } from './daily-quota.ts'
import { addRequests, grantRequests, grantSize } from './day-grants.ts'
import { createFallback, type Fallback } from './fallback.ts'
import { admitScript, grantScript, mergeScript, minute_ms, readScript } from './scripts.ts'
import { SharedDailyQuota } from './shared-daily-quota.ts'
import { createSharedSlots, type SharedSlots } from './shared-slots.ts'

/** The day of an account, as this process has counted it. */
interface Day {
  account_id: string
  day: number
  used: number
  limit: number | null
  notified: number
  /** Admitted beyond what the database has granted; written with the next flush. */
  ungranted: number
  /** Requests that wait for a grant. */
  waiting: number
  granting: Promise<number | undefined> | undefined
  /** Unix ms until which nothing is granted any more: the whole limit is. */
  exhausted_until: number
  /** Granted by the database, and not known to Redis: what other holders have, and what was lost. */
  missing: number
}

/** Requests for which one grant is made: what is not used is lost with Redis' data. */
const waiting_max = 64
/** Other processes may give back what they do not use. */
const askAgain_ms = 250
/** How long a request waits for a grant that another process has and Redis has not heard of. */
const giveUp_ms = 1000
/** Within the life of a grant's mark. */
const untold_ms = 300_000

export class RedisCounters implements Counters {
  private readonly redis: Redis
  private readonly changes: Changes
  private readonly db: Db
  private readonly log: Logger
  private readonly now: () => number
  private readonly onCounted: CountListener
  private readonly quota: SharedDailyQuota
  private readonly slots: SharedSlots
  private readonly fallback: Fallback
  private readonly reads: FixedWindows
  private readonly counted = new Map<string, Day>()
  private readonly untold: { keys: string[]; args: number[]; until: number }[] = []
  private readonly unmerged: Awaited<ReturnType<Fallback['drain']>> = []
  readonly days: Counters['days'] = { flush: () => this.flush(), close: () => this.close() }

  constructor(redis: Redis, changes: Changes, db: Db, log: Logger, now: () => number, onCounted: CountListener) {
    this.redis = redis
    this.changes = changes
    this.db = db
    this.log = log
    this.now = now
    this.onCounted = onCounted
    this.quota = new SharedDailyQuota(db, log, now, onCounted)
    this.slots = createSharedSlots(redis)
    this.fallback = createFallback({ quota: this.quota, processes: () => redis.processes(), slots: this.slots, now })
    this.reads = createFixedWindows(minute_ms, now)
    redis.onBeat(async (beat) => {
      await this.slots.renew(beat)
      // Also of the requests that were counted here during the last merge.
      await this.merge(beat)
    })
  }

  async count(demand: Demand): Promise<Outcome> {
    if (this.redis.isAway()) return this.fallback.count(demand)
    try {
      return await this.countShared(demand)
    } catch (error) {
      if (error instanceof RedisAway) return this.fallback.count(demand)
      throw error
    }
  }

  async countRead(
    { account_id, user_id }: { account_id: string; user_id: string },
    version: string | undefined,
    max: number,
  ): ReturnType<Counters['countRead']> {
    try {
      const keys = [versionKey(account_id), keyOf(account_id, `reads:${user_id}`)]
      const [status, current, count, left] = await this.redis.run(readScript, keys, [
        version ?? '*',
        newVersion(),
        minute_ms,
      ])
      if (this.changes.version(account_id) !== current) this.changes.note(account_id, String(current))
      if (status === 'outdated') return { outdated: true }
      return { count: Number(count), resets_at: this.now() + Number(left) }
    } catch (error) {
      if (!(error instanceof RedisAway)) throw error
      const { count, resets_at } = this.reads.add(user_id)
      const share = Math.max(1, Math.floor(max / this.redis.processes()))
      return { count: count > share ? max + 1 : count, resets_at }
    }
  }

  private keysOf(account_id: string, day: number): string[] {
    return [versionKey(account_id), keyOf(account_id, 'minute'), dayKey(account_id, day), this.slots.key(account_id)]
  }

  private dayOf(account_id: string): Day {
    const day = startOfDay(this.now())
    const name = `${account_id} ${day}`
    const counted = this.counted.get(name)
    if (counted) return counted
    const fresh: Day = {
      account_id,
      day,
      used: 0,
      limit: null,
      notified: 0,
      ungranted: 0,
      waiting: 0,
      granting: undefined,
      exhausted_until: 0,
      missing: 0,
    }
    this.counted.set(name, fresh)
    return fresh
  }

  /**
   * Has the database grant more of the day, `size` and what the requests that wait need, and tells Redis. Resolves with
   * the database's sum; undefined if it could not be written.
   */
  private grant(day: Day, limit: number | null, size: number): Promise<number | undefined> {
    const { account_id } = day
    const granted = async () => {
      // All that Redis has told in one piece wait then.
      await immediate()
      if (limit === null) return { granted: 0, total: await requestsOf(this.db, account_id, day.day) }
      return await grantRequests(
        this.db,
        account_id,
        day.day,
        limit,
        Math.max(size, Math.min(day.waiting, waiting_max)),
      )
    }
    day.granting ??= granted()
      .then(
        async ({ granted, total }) => {
          const told = [dayKey(account_id, day.day), keyOf(account_id, `grant:${newVersion()}`)]
          await this.redis.run(grantScript, told, [granted, total]).catch((error) => {
            // It may have been counted: it is sent again, under the same mark.
            if (granted > 0) this.untold.push({ keys: told, args: [granted, total], until: this.now() + untold_ms })
            throw error
          })
          return total
        },
        (error) => {
          this.log.warn({ err: error, account_id }, 'daily request counts could not be written; they stay in Redis')
          return undefined
        },
      )
      .finally(() => {
        day.granting = undefined
      })
    return day.granting
  }

  private async countShared(demand: Demand): Promise<Outcome> {
    const { account_id, bounds } = demand
    const wants = `${demand.minute ? 'm' : ''}${demand.day ? 'd' : ''}${demand.slot ? 's' : ''}`
    let beyond = false
    let given_up_at: number | undefined
    for (;;) {
      const day = this.dayOf(account_id)
      const holding = demand.slot ? this.slots.begin(account_id) : undefined
      const reply = await this.redis
        .run(admitScript, this.keysOf(account_id, day.day), [
          demand.version ?? '*',
          newVersion(),
          bounds.minute ?? -1,
          bounds.day ?? -1,
          bounds.slots ?? -1,
          wants,
          this.redis.process,
          this.slots.held(account_id),
          beyond ? 1 : 0,
        ])
        .catch((error) => {
          holding?.lost()
          throw error
        })
      const [status, version] = reply as string[]
      const [minute, left, used, inUse, granted] = reply.slice(2).map(Number) as [
        number,
        number,
        number,
        number,
        number,
      ]
      const release = status === 'ok' ? holding?.taken() : holding?.refused()
      if (this.changes.version(account_id) !== version) this.changes.note(account_id, version!)
      if (status === 'outdated') return { outdated: true }
      const minute_resets_at = this.now() + left
      const counts = { minute, minute_resets_at, day: Math.max(0, used), slots: inUse }
      if (status === 'slots') return { refused: 'slots', counts }
      if (demand.minute) this.fallback.note(account_id, minute, minute_resets_at, status === 'ok')
      if (status === 'minute') return { refused: 'minute', counts }
      if (status === 'day' || (status === 'grant' && day.exhausted_until > this.now()))
        return { refused: 'day', counts: { ...counts, day: bounds.day ?? counts.day } }
      if (status === 'ok') {
        if (demand.day) {
          Object.assign(day, { used: Math.max(day.used, used), limit: bounds.day })
          if (bounds.day === null || beyond) day.ungranted++
          else {
            const size = grantSize(bounds.day, granted)
            if (size > 1 && granted < bounds.day && granted - used <= size / 2)
              void this.grant(day, bounds.day, size).catch(() => {})
          }
        } else if (used < 0 && wants === '') {
          return { counts: { ...counts, day: await requestsOf(this.db, account_id, day.day) } }
        }
        return { counts, release }
      }
      day.waiting++
      const size = bounds.day === null ? 0 : grantSize(bounds.day, Math.max(0, granted))
      const total = await Promise.race([this.grant(day, bounds.day, size), sleep(databaseWait_ms)])
      day.waiting--
      // Do not block requests on a locked database, as long as the count of Redis is known.
      beyond = total === undefined && used >= 0
      if (total === undefined && used < 0) await requestsOf(this.db, account_id, day.day)
      if (total === undefined || bounds.day === null || total < bounds.day || granted < 0) continue
      // All is granted. What Redis has not heard of, another process is about to tell, or holds and will give back.
      given_up_at ??= this.now() + giveUp_ms
      if (this.now() >= given_up_at) day.missing = Math.max(0, total - granted)
      if (granted + day.missing >= total) day.exhausted_until = this.now() + askAgain_ms
      else await sleep(5)
    }
  }

  /** Tells Redis what was admitted here while it was away. */
  private async merge({ run, lost }: Beat): Promise<void> {
    for (let grant = this.untold[0]; grant; grant = this.untold[0]) {
      if (grant.until > this.now()) await run(grantScript, grant.keys, grant.args)
      this.untold.shift()
    }
    // What was meant for the lost data is part of what is sent to the new.
    if (lost) this.unmerged.length = 0
    this.unmerged.push(...(await this.fallback.drain(lost)))
    const today = startOfDay(this.now())
    for (let admitted = this.unmerged[0]; admitted; admitted = this.unmerged[0]) {
      const { account_id, minute, resets_at, day } = admitted
      const left = Math.min(minute_ms, resets_at - this.now())
      const keys = [keyOf(account_id, 'minute'), dayKey(account_id, today)]
      await run(mergeScript, keys, [left > 0 ? minute : 0, Math.max(1, left), day])
      this.unmerged.shift()
    }
  }

  private async flush(): Promise<void> {
    this.fallback.sweep()
    await this.quota.flush()
    for (const [name, day] of this.counted) {
      try {
        await this.write(day)
        if (day.used !== day.notified) {
          await this.onCounted(day.account_id, day.day, day.used, day.limit)
          day.notified = day.used
        }
        if (day.day !== startOfDay(this.now())) this.counted.delete(name)
      } catch (error) {
        this.log.warn(
          { err: error, account_id: day.account_id },
          'daily request counts could not be written or reported; they stay in memory and are retried',
        )
      }
    }
  }

  private async close(): Promise<void> {
    for (const day of this.counted.values()) await this.write(day)
    await this.quota.close()
  }

  private async write(day: Day): Promise<void> {
    const { ungranted } = day
    if (ungranted === 0) return
    day.ungranted = 0
    try {
      await addRequests(this.db, day.account_id, day.day, ungranted)
    } catch (error) {
      day.ungranted += ungranted
      throw error
    }
  }
}

const keyOf = (account_id: string, name: string) => `{${account_id}}:${name}`
const dayKey = (account_id: string, day: number) => keyOf(account_id, `day:${new Date(day).toISOString().slice(0, 10)}`)
