// Throttles wrong keys per client address, so that guessing keys blocks only the address that guesses.
import { networkOf } from '../../../lib/connections.ts'
import type { WindowCounters } from '../redis/window-counter.ts'
import type { Window } from './limits.ts'

export const wrongKeysPerMinute = 30
const minute_ms = 60_000

export interface AuthThrottle {
  /** Unix ms until which the address is blocked; undefined if it is not. */
  blockedUntil(address: string): number | undefined
  /** `exceeded`: other processes have counted wrong keys too, and the address is blocked already. */
  recordWrongKey(address: string): Promise<Window & { exceeded: boolean }>
  /** The address's current window, without counting anything. */
  window(address: string): Promise<Window>
}

export function createAuthThrottle(counters: WindowCounters): AuthThrottle {
  const counter = counters('wrong-keys', minute_ms)
  const blocked = new Map<string, number>()
  return {
    blockedUntil(address) {
      // Fast path: every request calls this, and usually no address is blocked.
      if (blocked.size === 0) return undefined
      const until = blocked.get(networkOf(address))
      if (until === undefined || until > Date.now()) return until
      blocked.delete(networkOf(address))
      return undefined
    },
    async recordWrongKey(address) {
      const { count, left_ms } = await counter.add(networkOf(address))
      const resets_at = Date.now() + left_ms
      if (count >= wrongKeysPerMinute) {
        for (const [each, until] of blocked) if (until <= Date.now()) blocked.delete(each)
        blocked.set(networkOf(address), resets_at)
      }
      return { ...windowOf(count, resets_at), exceeded: count > wrongKeysPerMinute }
    },
    async window(address) {
      const { count, left_ms } = await counter.get(networkOf(address))
      return windowOf(count, Date.now() + left_ms)
    },
  }
}

const windowOf = (used: number, resets_at: number): Window => ({
  limit: wrongKeysPerMinute,
  remaining: Math.max(0, wrongKeysPerMinute - used),
  resets_at,
})
