// Daily request quota of a process that shares a database with others: it admits from grants of the database
// (day-grants.ts), so that all processes together never exceed the limit. While the database is away there are no
// grants, and `admit` rejects: nor could keys be looked up then.
import type { Logger } from 'pino'
import { startOfDay } from '../../../lib/utc-day.ts'
import type { Db } from '../db/open.ts'
import { type CountListener, type DailyQuota, requestsOf } from './daily-quota.ts'
import { addRequests, grantRequests, grantSize } from './day-grants.ts'

interface Share {
  day: number
  limit: number | null
  /** The database's sum, as this process knows it: all grants, those of others too. */
  total: number
  /** Granted to this process and not used. */
  free: number
  /** Requests of an unlimited account that are not written yet. */
  ungranted: number
  /** Requests that wait for a grant. */
  waiting: number
  granting: Promise<void> | undefined
  /** Unix ms until which the database is not asked again, since it had no more to grant. */
  exhausted_until: number
  notified: number
  /** Admitted since the last flush, and since the last drain. */
  recent: number
  admitted: number
}

/** Others may give back what they do not use. */
const askAgain_ms = 250

export class SharedDailyQuota implements Pick<DailyQuota, keyof DailyQuota> {
  private readonly db: Db
  private readonly log: Logger
  private readonly now: () => number
  private readonly onCounted: CountListener
  private readonly shares = new Map<string, Share>()
  private readonly loading = new Map<string, Promise<Share>>()

  constructor(db: Db, log: Logger, now: () => number, onCounted: CountListener) {
    this.db = db
    this.log = log
    this.now = now
    this.onCounted = onCounted
  }

  async admit(account_id: string, limit: number | null): Promise<number | undefined> {
    for (;;) {
      const share = await this.shareOf(account_id)
      share.limit = limit
      if (limit === null) {
        share.ungranted++
        return count(share)
      }
      if (share.free > 0) {
        share.free--
        const size = grantSize(limit, share.total)
        if (size > 1 && share.free <= size / 2)
          this.grant(account_id, share, limit, size).catch((error) => this.warn(error, account_id))
        return count(share)
      }
      if (share.exhausted_until > this.now()) return undefined
      share.waiting++
      try {
        await this.grant(account_id, share, limit, share.waiting + grantSize(limit, share.total) - 1)
      } finally {
        share.waiting--
      }
    }
  }

  refund(account_id: string): void {
    const share = this.shares.get(account_id)
    if (!share) return
    if (share.limit === null) share.ungranted--
    else share.free++
    share.recent--
    share.admitted--
  }

  async used(account_id: string): Promise<number> {
    return usedOf(await this.shareOf(account_id))
  }

  async flush(): Promise<void> {
    for (const [account_id, share] of this.shares) {
      try {
        await this.write(account_id, share, share.recent === 0 && share.waiting === 0)
        share.recent = 0
        await this.notify(account_id, share)
        if (share.day !== startOfDay(this.now()) && this.shares.get(account_id) === share)
          this.shares.delete(account_id)
      } catch (error) {
        this.warn(error, account_id)
      }
    }
  }

  /**
   * Ends counting here: gives back the grants, writes what was admitted without one, and returns how many requests
   * each account was admitted since the last call.
   */
  async drain(): Promise<{ account_id: string; day: number; admitted: number }[]> {
    const drained: { account_id: string; day: number; admitted: number }[] = []
    for (const [account_id, share] of [...this.shares]) {
      this.shares.delete(account_id)
      await this.settle(account_id, share).catch((error) => this.warn(error, account_id))
      if (share.admitted > 0) drained.push({ account_id, day: share.day, admitted: share.admitted })
    }
    return drained
  }

  async close(): Promise<void> {
    for (const [account_id, share] of this.shares) {
      await share.granting?.catch(() => {})
      await this.write(account_id, share, true)
    }
  }

  private warn(error: unknown, account_id: string): void {
    this.log.warn({ err: error, account_id }, 'daily request counts could not be written; they stay in memory')
  }

  private async load(account_id: string, day: number): Promise<Share> {
    const previous = this.shares.get(account_id)
    if (previous) await this.settle(account_id, previous).catch((error) => this.warn(error, account_id))
    const total = await requestsOf(this.db, account_id, day)
    const fresh = { limit: null, free: 0, ungranted: 0, waiting: 0, granting: undefined, exhausted_until: 0 }
    const share: Share = { ...fresh, day, total, notified: total, recent: 0, admitted: 0 }
    this.shares.set(account_id, share)
    return share
  }

  private shareOf(account_id: string): Share | Promise<Share> {
    const day = startOfDay(this.now())
    const share = this.shares.get(account_id)
    if (share?.day === day) return share
    const name = `${account_id} ${day}`
    const pending = this.loading.get(name) ?? this.load(account_id, day).finally(() => this.loading.delete(name))
    this.loading.set(name, pending)
    return pending
  }

  private grant(account_id: string, share: Share, limit: number, size: number): Promise<void> {
    share.granting ??= grantRequests(this.db, account_id, share.day, limit, size)
      .then(({ granted, total }) => {
        share.total = total
        share.free += granted
        if (granted === 0) share.exhausted_until = this.now() + askAgain_ms
      })
      .finally(() => {
        share.granting = undefined
      })
    return share.granting
  }

  /** Writes what was admitted without a grant, and with `giveBack` returns the grants that are left. */
  private async write(account_id: string, share: Share, giveBack: boolean): Promise<void> {
    const { ungranted } = share
    const returned = giveBack ? share.free : 0
    if (ungranted === returned) {
      share.ungranted = 0
      share.free -= returned
      return
    }
    // Before the write: what it returns must not be admitted meanwhile.
    share.free -= returned
    share.ungranted -= ungranted
    share.total += ungranted - returned
    try {
      await addRequests(this.db, account_id, share.day, ungranted - returned)
    } catch (error) {
      share.free += returned
      share.ungranted += ungranted
      share.total -= ungranted - returned
      throw error
    }
  }

  private async notify(account_id: string, share: Share): Promise<void> {
    const used = usedOf(share)
    if (used === share.notified) return
    await this.onCounted(account_id, share.day, used, share.limit)
    share.notified = used
  }

  private async settle(account_id: string, share: Share): Promise<void> {
    await share.granting?.catch(() => {})
    await this.write(account_id, share, true)
    await this.notify(account_id, share)
  }
}

const usedOf = ({ total, free, ungranted }: Share) => total - free + ungranted

function count(share: Share): number {
  share.recent++
  share.admitted++
  return usedOf(share)
}
