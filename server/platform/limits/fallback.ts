// Limits while Redis is away: this process admits its share of what is left, and reports it when Redis is back.
import { endOfDay, startOfDay } from '../../../lib/utc-day.ts'
import type { Counts, Demand, Outcome } from './counters.ts'
import { minute_ms } from './scripts.ts'
import type { SharedDailyQuota } from './shared-daily-quota.ts'

export interface Fallback {
  /** Remembers a minute window as Redis told it. `counted`: with a request that it counted. */
  note(account_id: string, minute: number, resets_at: number, counted: boolean): void
  count(demand: Demand): Promise<Outcome>
  /**
   * What was admitted here since the last call, and if Redis has `lost` its data, what it had counted of this process
   * too. `minute` is the count of a window that ends at `resets_at`.
   */
  drain(lost: boolean): Promise<{ account_id: string; minute: number; resets_at: number; day: number }[]>
  /** Forgets windows that have ended. */
  sweep(): void
}

interface Window {
  resets_at: number
  /** The count of all processes when Redis was last heard. */
  before: number
  /** Those of this process among them. */
  own: number
  /** Admitted here since. */
  here: number
}

interface Needs {
  quota: SharedDailyQuota
  /** The processes among which the limits are divided. */
  processes(): number
  /** The slots that this process holds, and how to take one more. */
  slots: { held(account_id: string): number; take(account_id: string): () => void }
  now(): number
}

/** The end of a window is given in milliseconds from now, with the delay of a reply. */
const sameWindow_ms = 5000

export function createFallback({ quota, processes, slots, now }: Needs): Fallback {
  const windows = new Map<string, Window>()
  /** This process's share of a limit: at least 1, as a limit may be smaller than the number of processes. */
  const shareOf = (limit: number) => Math.max(1, Math.floor(limit / processes()))
  /** What is left of its share of a minute, and no more than its share of what is left to all. */
  function shareOfMinute(limit: number, { before, own }: Window): number {
    return before >= limit ? 0 : Math.max(0, Math.min(shareOf(limit - before), shareOf(limit) - own))
  }

  function windowOf(account_id: string): Window {
    const known = windows.get(account_id)
    if (known && known.resets_at > now()) return known
    const fresh = { resets_at: now() + minute_ms, before: 0, own: 0, here: 0 }
    windows.set(account_id, fresh)
    return fresh
  }

  return {
    note(account_id, minute, resets_at, counted) {
      const known = windows.get(account_id)
      const left = known ? known.resets_at - now() : 0
      // A Redis that lost its data begins a window in the middle of ours.
      const same = known && left > 0 && (Math.abs(known.resets_at - resets_at) < sameWindow_ms || left > sameWindow_ms)
      const { own, here, before } = same ? known : { own: 0, here: 0, before: 0 }
      windows.set(account_id, {
        before: Math.max(before, minute),
        own: own + (counted ? 1 : 0),
        resets_at: same ? Math.min(known.resets_at, resets_at) : resets_at,
        here,
      })
    },

    async count({ account_id, bounds, minute, day, slot }) {
      const window = windowOf(account_id)
      const share = bounds.minute === null ? Number.POSITIVE_INFINITY : shareOfMinute(bounds.minute, window)
      const countsWith = async (used?: number): Promise<Counts> => ({
        // Tells the share's rest as the rest of the limit.
        minute: bounds.minute === null ? window.before + window.here : bounds.minute - Math.max(0, share - window.here),
        minute_resets_at: window.resets_at,
        day: used ?? (slot && !day ? 0 : await quota.used(account_id)),
        slots: slots.held(account_id),
      })
      if (slot && bounds.slots !== null && slots.held(account_id) >= shareOf(bounds.slots))
        return { refused: 'slots', counts: await countsWith() }
      if (minute && window.here >= share) return { refused: 'minute', counts: await countsWith() }
      const release = slot ? slots.take(account_id) : undefined
      if (minute) window.here++
      const used = day ? await quota.admit(account_id, bounds.day) : undefined
      if (day && used === undefined) {
        if (minute) window.here--
        release?.()
        return { refused: 'day', counts: await countsWith() }
      }
      return { counts: await countsWith(used), release }
    },

    async drain(lost) {
      const today = startOfDay(now())
      const days = new Map<string, number>()
      for (const { account_id, day, admitted } of await quota.drain()) if (day === today) days.set(account_id, admitted)
      const drained = new Map<string, { account_id: string; minute: number; resets_at: number; day: number }>()
      for (const [account_id, window] of windows) {
        const { own, here, resets_at } = window
        const untold = lost ? own + here : here
        if (untold === 0) continue
        drained.set(account_id, { account_id, minute: untold, resets_at, day: 0 })
        Object.assign(window, { before: window.before + here, own: own + here, here: 0 })
      }
      for (const [account_id, day] of days) {
        const entry = drained.get(account_id) ?? { account_id, minute: 0, resets_at: endOfDay(now()), day }
        drained.set(account_id, { ...entry, day })
      }
      return [...drained.values()]
    },

    sweep() {
      for (const [account_id, { resets_at, here }] of windows)
        if (resets_at <= now() && here === 0) windows.delete(account_id)
    },
  }
}
