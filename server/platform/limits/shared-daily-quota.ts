// Daily request quota of a process that shares a database with others: it admits from grants of the database
// (day-grants.ts), so that all processes together never exceed the limit. While the database is away there are no
// grants, and `admit` rejects: nor could keys be looked up then.
import type { Logger } from 'pino'
import { startOfDay } from '../../../lib/utc-day.ts'
import type { Db } from '../db/open.ts'
import { type CountListener, type DailyQuota, requestsOf } from './daily-quota.ts'
import { addRequests, grantRequests, grantSize } from './day-grants.ts'

export interface SharedDailyQuota extends DailyQuota {
  /**
   * Ends counting here: gives back the grants, writes what was admitted without one, and returns how many requests
   * each account was admitted since the last call.
   */
  drain(): Promise<{ account_id: string; day: number; admitted: number }[]>
}

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

export function createSharedDailyQuota(
  db: Db,
  log: Logger,
  now: () => number,
  onCounted: CountListener,
): SharedDailyQuota {
  const shares = new Map<string, Share>()
  const loading = new Map<string, Promise<Share>>()
  const usedOf = ({ total, free, ungranted }: Share) => total - free + ungranted

  const warn = (error: unknown, account_id: string) =>
    log.warn({ err: error, account_id }, 'daily request counts could not be written; they stay in memory')

  async function load(account_id: string, day: number): Promise<Share> {
    const previous = shares.get(account_id)
    if (previous) await settle(account_id, previous).catch((error) => warn(error, account_id))
    const total = await requestsOf(db, account_id, day)
    const fresh = { limit: null, free: 0, ungranted: 0, waiting: 0, granting: undefined, exhausted_until: 0 }
    const share: Share = { ...fresh, day, total, notified: total, recent: 0, admitted: 0 }
    shares.set(account_id, share)
    return share
  }

  function shareOf(account_id: string): Share | Promise<Share> {
    const day = startOfDay(now())
    const known = shares.get(account_id)
    if (known?.day === day) return known
    const name = `${account_id} ${day}`
    const pending = loading.get(name) ?? load(account_id, day).finally(() => loading.delete(name))
    loading.set(name, pending)
    return pending
  }

  function grant(account_id: string, share: Share, limit: number, wanted: number): Promise<void> {
    share.granting ??= grantRequests(db, account_id, share.day, limit, wanted)
      .then(({ granted, total }) => {
        share.total = total
        share.free += granted
        if (granted === 0) share.exhausted_until = now() + askAgain_ms
      })
      .finally(() => {
        share.granting = undefined
      })
    return share.granting
  }

  /** Writes what was admitted without a grant, and with `giveBack` returns the grants that are left. */
  async function write(account_id: string, share: Share, giveBack: boolean): Promise<void> {
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
      await addRequests(db, account_id, share.day, ungranted - returned)
    } catch (error) {
      share.free += returned
      share.ungranted += ungranted
      share.total -= ungranted - returned
      throw error
    }
  }

  async function notify(account_id: string, share: Share): Promise<void> {
    const used = usedOf(share)
    if (used === share.notified) return
    await onCounted(account_id, share.day, used, share.limit)
    share.notified = used
  }

  async function settle(account_id: string, share: Share): Promise<void> {
    await share.granting?.catch(() => {})
    await write(account_id, share, true)
    await notify(account_id, share)
  }

  const count = (share: Share) => {
    share.recent++
    share.admitted++
    return usedOf(share)
  }

  return {
    async admit(account_id, limit) {
      for (;;) {
        const share = await shareOf(account_id)
        share.limit = limit
        if (limit === null) {
          share.ungranted++
          return count(share)
        }
        if (share.free > 0) {
          share.free--
          const size = grantSize(limit, share.total)
          if (size > 1 && share.free <= size / 2)
            grant(account_id, share, limit, size).catch((error) => warn(error, account_id))
          return count(share)
        }
        if (share.exhausted_until > now()) return undefined
        share.waiting++
        try {
          await grant(account_id, share, limit, share.waiting + grantSize(limit, share.total) - 1)
        } finally {
          share.waiting--
        }
      }
    },

    refund(account_id) {
      const share = shares.get(account_id)
      if (!share) return
      if (share.limit === null) share.ungranted--
      else share.free++
      share.recent--
      share.admitted--
    },

    used: async (account_id) => usedOf(await shareOf(account_id)),

    async flush() {
      for (const [account_id, share] of shares) {
        try {
          await write(account_id, share, share.recent === 0 && share.waiting === 0)
          share.recent = 0
          await notify(account_id, share)
          if (share.day !== startOfDay(now()) && shares.get(account_id) === share) shares.delete(account_id)
        } catch (error) {
          warn(error, account_id)
        }
      }
    },

    async drain() {
      const drained: { account_id: string; day: number; admitted: number }[] = []
      for (const [account_id, share] of [...shares]) {
        shares.delete(account_id)
        await settle(account_id, share).catch((error) => warn(error, account_id))
        if (share.admitted > 0) drained.push({ account_id, day: share.day, admitted: share.admitted })
      }
      return drained
    },

    async close() {
      for (const [account_id, share] of shares) {
        await share.granting?.catch(() => {})
        await write(account_id, share, true)
      }
    },
  }
}
