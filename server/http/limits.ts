// Rate and concurrency limits of an account, enforced on every request.
import type { FastifyReply } from 'fastify'
import { ApiError } from '../../contract/errors.ts'
import type { Route } from '../../contract/route.ts'
import type { Caller } from './auth.ts'

/** State of a rate limit window. `resets_at` is in unix milliseconds. */
export interface Window {
  limit: number
  remaining: number
  resets_at: number
}

export type LimitName =
  | 'requests_per_minute'
  | 'requests_per_day'
  | 'max_concurrent'
  | 'wrong_keys_per_minute'
  | 'session_reads_per_minute'

/** Why a request is refused. `resets_at`: when a retry may succeed, in unix milliseconds. */
export interface Refusal {
  limit: LimitName
  max: number
  resets_at: number
}

export interface Limits {
  /**
   * Counts one request of the caller's account, or refuses it without counting. Returns the window with the smaller
   * share left; undefined if the tier has no limits.
   */
  countRequest(caller: Caller): Promise<{ window: Window | undefined; refused?: Refusal }>
  /** Counts one read of a member's sessions, which use up nothing of the account. Returns why it is refused, if it is. */
  countSessionRead(caller: Caller): Promise<Refusal | undefined>
  /** Returns the same window without counting. */
  window(caller: Caller): Promise<Window | undefined>
  /** Takes one of the account's concurrency slots. Returns its release function; undefined if no slot is free. */
  acquireSlot(account: { account_id: string; tier: string }): (() => void) | undefined
  /** The tier's number of concurrency slots; null if unlimited. */
  concurrency(tier: string): number | null
}

/** Counts a request and sets the rate limit headers. Throws rate_limit_exceeded beyond the account's limits. */
export async function requireLimits(
  limits: Limits,
  caller: Caller,
  { concurrent, method }: Route,
  reply: FastifyReply,
): Promise<void> {
  // A page of the dashboard reads much at once. What a key's program may do in a minute is not used up by it.
  if (caller.kind === 'session' && method === 'GET') {
    const refused = await limits.countSessionRead(caller)
    if (refused) throw rateLimitError(refused)
    return
  }
  if (concurrent) {
    const release = limits.acquireSlot(caller)
    if (!release) {
      setLimitHeaders(reply, await limits.window(caller))
      throw rateLimitError(concurrencyRefusal(limits, caller))
    }
    reply.raw.once('close', release)
  }
  const { window, refused } = await limits.countRequest(caller)
  setLimitHeaders(reply, window)
  if (refused) throw rateLimitError(refused)
}

/** A slot is released when any answer ends, which cannot be predicted: suggest a retry in one second. */
const concurrencyRefusal = (limits: Limits, { tier }: Caller): Refusal => ({
  limit: 'max_concurrent',
  max: limits.concurrency(tier) ?? 0,
  resets_at: Date.now() + 1000,
})

export function setLimitHeaders(reply: FastifyReply, window: Window | undefined): void {
  if (!window) return
  reply.header('x-ratelimit-limit', window.limit)
  reply.header('x-ratelimit-remaining', window.remaining)
  reply.header('x-ratelimit-reset', Math.ceil(window.resets_at / 1000))
}

const refusalText: Record<LimitName, (max: number) => string> = {
  requests_per_minute: (max) => `This account may make ${max} requests a minute.`,
  requests_per_day: (max) => `This account may make ${max} requests a day (UTC).`,
  max_concurrent: (max) =>
    `This account may have ${max} requests and jobs under way at once. Wait until one has ended.`,
  wrong_keys_per_minute: (max) => `${max} wrong keys came from this address within a minute.`,
  session_reads_per_minute: (max) => `Your sessions may read ${max} times a minute. Close some tabs of the dashboard.`,
}

/** The error for a refused request; `details.retry_after_seconds` becomes the Retry-After header. */
export function rateLimitError({ limit, max, resets_at }: Refusal): ApiError {
  const retry_after_seconds = Math.max(1, Math.ceil((resets_at - Date.now()) / 1000))
  return new ApiError('rate_limit_exceeded', `${refusalText[limit](max)} Try again in ${retry_after_seconds} s.`, {
    details: { limit, max, retry_after_seconds },
  })
}
