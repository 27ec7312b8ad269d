// What an account may ask for, held at every request: how many in its windows, and how many at once.
import type { FastifyReply } from 'fastify'
import { ApiError } from '../../contract/errors.ts'
import type { Route } from '../../contract/route.ts'
import type { Caller } from './auth.ts'

/** How much of a window is left, and when it ends, in unix milliseconds. */
export interface Window {
  limit: number
  remaining: number
  resets_at: number
}

export type LimitName = 'requests_per_minute' | 'requests_per_day' | 'max_concurrent' | 'wrong_keys_per_minute'

/** Why a request is refused; `resets_at` tells when one is worth another try. */
export interface Refusal {
  limit: LimitName
  max: number
  resets_at: number
}

export interface Limits {
  /**
   * Counts one request of the caller's account, or refuses it, which counts nothing. The window is the one of which the
   * smaller share is left; undefined where the tier bounds none.
   */
  admit(caller: Caller): Promise<{ window: Window | undefined; refused?: Refusal }>
  /** The same window, with nothing counted. */
  window(caller: Caller): Promise<Window | undefined>
  /**
   * Takes one of the account's places for work at once; to be given back by calling the result. Undefined where all are
   * taken.
   */
  slot(account: { account_id: string; tier: string }): (() => void) | undefined
  /** What the account may have at once; null where that is not bounded. */
  concurrency(tier: string): number | null
}

/**
 * Counts a request, tells on its answer what is left, and throws where it is beyond the limits of the caller's account.
 */
export async function requireLimits(
  limits: Limits,
  caller: Caller,
  { concurrent }: Route,
  reply: FastifyReply,
): Promise<void> {
  if (concurrent) {
    const release = limits.slot(caller)
    if (!release) {
      tell(reply, await limits.window(caller))
      throw refusal(concurrencyRefusal(limits, caller))
    }
    reply.raw.once('close', release)
  }
  const { window, refused } = await limits.admit(caller)
  tell(reply, window)
  if (refused) throw refusal(refused)
}

/** A place comes free when any answer ends: soon, but nobody knows when. */
const concurrencyRefusal = (limits: Limits, { tier }: Caller): Refusal => ({
  limit: 'max_concurrent',
  max: limits.concurrency(tier) ?? 0,
  resets_at: Date.now() + 1000,
})

export function tell(reply: FastifyReply, window: Window | undefined): void {
  if (!window) return
  reply.header('x-ratelimit-limit', window.limit)
  reply.header('x-ratelimit-remaining', window.remaining)
  reply.header('x-ratelimit-reset', Math.ceil(window.resets_at / 1000))
}

const saying: Record<LimitName, (max: number) => string> = {
  requests_per_minute: (max) => `This account may make ${max} requests a minute.`,
  requests_per_day: (max) => `This account may make ${max} requests a day (UTC).`,
  max_concurrent: (max) =>
    `This account may have ${max} requests and jobs under way at once. Wait until one has ended.`,
  wrong_keys_per_minute: (max) => `${max} wrong keys came from this address within a minute.`,
}

/** The error of a refused request; `retry_after_seconds` of its details becomes the header. */
export function refusal({ limit, max, resets_at }: Refusal): ApiError {
  const retry_after_seconds = Math.max(1, Math.ceil((resets_at - Date.now()) / 1000))
  return new ApiError('rate_limit_exceeded', `${saying[limit](max)} Try again in ${retry_after_seconds} s.`, {
    details: { limit, max, retry_after_seconds },
  })
}
