// Throttles wrong keys per client address, so that guessing keys blocks only the address that guesses.
import { isIPv6 } from 'node:net'
import ipaddr from 'ipaddr.js'
import { RateLimiterMemory } from 'rate-limiter-flexible'
import type { Window } from './limits.ts'

export const wrongKeysPerMinute = 30
const minute_s = 60

export interface AuthThrottle {
  /** Unix ms until which the address is blocked; undefined if it is not. */
  blockedUntil(address: string): number | undefined
  recordWrongKey(address: string): Promise<Window>
  /** The address's current window, without counting anything. */
  window(address: string): Promise<Window>
}

export function createAuthThrottle(): AuthThrottle {
  const counter = new RateLimiterMemory({ points: Number.MAX_SAFE_INTEGER, duration: minute_s })
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
      const { consumedPoints, msBeforeNext } = await counter.consume(networkOf(address))
      const resets_at = Date.now() + msBeforeNext
      if (consumedPoints >= wrongKeysPerMinute) {
        for (const [each, until] of blocked) if (until <= Date.now()) blocked.delete(each)
        blocked.set(networkOf(address), resets_at)
      }
      return windowOf(consumedPoints, resets_at)
    },
    async window(address) {
      const found = await counter.get(networkOf(address))
      return windowOf(
        found?.consumedPoints ?? 0,
        Date.now() + (found ? Math.max(0, found.msBeforeNext) : minute_s * 1000),
      )
    },
  }
}

const windowOf = (used: number, resets_at: number): Window => ({
  limit: wrongKeysPerMinute,
  remaining: Math.max(0, wrongKeysPerMinute - used),
  resets_at,
})

/** The key to count by: an IPv4 address, or the /64 of an IPv6 address, as one client usually has all of it. */
export function networkOf(address: string): string {
  if (!isIPv6(address)) return address
  const parsed = ipaddr.IPv6.parse(address)
  return parsed.isIPv4MappedAddress() ? parsed.toIPv4Address().toString() : parsed.parts.slice(0, 4).join(':')
}
