// Wrong keys are counted per address, so that guessing costs those who guess and nobody else.
import { isIPv6 } from 'node:net'
import ipaddr from 'ipaddr.js'
import { RateLimiterMemory } from 'rate-limiter-flexible'
import type { Window } from './limits.ts'

export const wrongKeysPerMinute = 30
const minute_s = 60

export interface Attempts {
  /** When the address may try again, where it sent too many wrong keys; undefined where it may. */
  refusedUntil(address: string): number | undefined
  wrong(address: string): Promise<Window>
  /** What the address has left, with nothing counted. */
  window(address: string): Promise<Window>
}

export function createAttempts(): Attempts {
  const counts = new RateLimiterMemory({ points: Number.MAX_SAFE_INTEGER, duration: minute_s })
  const refused = new Map<string, number>()
  return {
    refusedUntil(address) {
      // Nearly always there is none, and every request asks.
      if (refused.size === 0) return undefined
      const until = refused.get(network(address))
      if (until === undefined || until > Date.now()) return until
      refused.delete(network(address))
      return undefined
    },
    async wrong(address) {
      const { consumedPoints, msBeforeNext } = await counts.consume(network(address))
      const resets_at = Date.now() + msBeforeNext
      if (consumedPoints >= wrongKeysPerMinute) {
        for (const [each, until] of refused) if (until <= Date.now()) refused.delete(each)
        refused.set(network(address), resets_at)
      }
      return windowOf(consumedPoints, resets_at)
    },
    async window(address) {
      const found = await counts.get(network(address))
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

/** Who has one address of IPv6 has the 2^64 around it. */
function network(address: string): string {
  if (!isIPv6(address)) return address
  const parsed = ipaddr.IPv6.parse(address)
  return parsed.isIPv4MappedAddress() ? parsed.toIPv4Address().toString() : parsed.parts.slice(0, 4).join(':')
}
