// Rate and concurrency limits of an account, enforced on every request.
import type { FastifyReply } from 'fastify'
import { ApiError } from '../../../contract/errors.ts'
import type { Route } from '../../../contract/route.ts'
import { after } from '../../../lib/after.ts'
import type { Caller } from './caller.ts'

/** State of a rate limit window. `resets_at` is in unix milliseconds. */
export interface Window {
  limit: number
  remaining: number
  resets_at: number
}

type LimitName =
  | 'requests_per_minute'
  | 'requests_per_day'
  | 'max_concurrent'
  | 'max_event_streams'
  | 'connections_per_account'
  | 'connections_per_address'
  | 'wrong_keys_per_minute'
  | 'session_reads_per_minute'

/** Why a request is refused. `resets_at`: when a retry may succeed, in unix milliseconds. */
export interface Refusal {
  limit: LimitName
  max: number
  resets_at: number
}

/** Whether a request is admitted. With `outdated` nothing was decided: look the caller up again. */
export interface Admission {
  /** The window with the smaller share left; undefined if the tier has no limits. */
  window?: Window | undefined
  refused?: Refusal
  /** Frees the concurrency slot. */
  release?: (() => void) | undefined
  outdated?: true
}

export interface Limits {
  /**
   * Counts one request of the caller's account, and takes a concurrency slot for it, or refuses it without counting.
   */
  admit(caller: Caller, demand: { slot: boolean }): Promise<Admission> | Admission
  /** Counts one more request of a caller who is admitted. Returns why it is refused, if it is. */
  countRequest(account: { account_id: string; tier: string }): Promise<Refusal | undefined>
  /** Counts one read of a member's sessions, which use up nothing of the account. */
  countSessionRead(caller: Caller): Promise<Pick<Admission, 'refused' | 'outdated'>>
  /** Takes one of the account's concurrency slots. Resolves with its release function; undefined if no slot is free. */
  acquireSlot(account: { account_id: string; tier: string }): Promise<(() => void) | undefined>
  /** Takes one of the account's streams of events at this process. */
  acquireEventStream(account: { account_id: string; tier: string }): { release(): void } | { refused: Refusal }
}

/**
 * Counts a request and sets the rate limit headers. Throws rate_limit_exceeded beyond the account's limits. Replies
 * false, without counting, if the caller has to be looked up again.
 */
export function requireLimits(
  limits: Limits,
  caller: Caller,
  { concurrent, method }: Route,
  reply: FastifyReply,
): Promise<boolean> | boolean {
  // A page of the dashboard reads much at once. What a key's program may do in a minute is not used up by it.
  if (caller.kind === 'session' && method === 'GET')
    return limits.countSessionRead(caller).then(({ outdated, refused }) => {
      if (refused) throw rateLimitError(refused)
      return !outdated
    })
  return after(
    limits.admit(caller, { slot: concurrent === true }),
    ({ outdated, window, refused, release }): boolean => {
      if (outdated) return false
      if (release) releaseAtEnd(reply, release)
      setLimitHeaders(reply, window)
      if (refused) throw rateLimitError(refused)
      return true
    },
  )
}

/** Frees a slot when the response has ended, or at once if the client has already left. */
export function releaseAtEnd({ raw }: FastifyReply, release: () => void): void {
  if (raw.destroyed) release()
  else raw.once('close', release)
}

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
    `This account may have ${max} requests and jobs in progress at once. Wait until one has ended.`,
  max_event_streams: (max) =>
    `This account may have ${max} streams of events open at once. Close one, or ask for the state now and then ` +
    'instead.',
  connections_per_account: (max) =>
    `This account may have ${max} requests in progress at once, of any kind. Wait until one has ended.`,
  connections_per_address: (max) => `Your address may have ${max} connections without a right key at once. Close some.`,
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
