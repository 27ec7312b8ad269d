// Throttles sign-ins: per address, and per email from an address, so that guessing blocks only who guesses.
import { RateLimiterMemory, type RateLimiterRes } from 'rate-limiter-flexible'
import { ApiError } from '../../contract/errors.ts'
import { networkOf } from '../http/auth-throttle.ts'

export interface SignInThrottle {
  /** Counts a request to a route that needs no key. Throws rate_limit_exceeded. */
  countRequest(address: string): Promise<void>
  /**
   * Counts a try, before the password is looked at, so that many at once are no way around. Throws rate_limit_exceeded
   * while the email is blocked for the address, or for all. `email` is in lower case.
   */
  begin(address: string, email: string): Promise<void>
  /** The try was right: it and those before count no more. */
  succeed(address: string, email: string): Promise<void>
  /** Nobody looked whether the try was right: it does not count. */
  forget(address: string, email: string): Promise<void>
}

/** Requests of an address in a minute; a sign-in with a passkey takes two. */
export const requestsPerMinute = 30
/** Failures before an email is blocked for an address, for twice as long with each further one. */
export const failuresAllowed = 5
/** Failures of all addresses together, for one email: guessing from many at once is slow too. */
const failuresPerHour = 100
const firstBlock_s = 15
const longestBlock_s = 900
const emailsMax = 10_000

export function createSignInThrottle(now: () => number): SignInThrottle {
  const requests = new RateLimiterMemory({ points: requestsPerMinute, duration: 60 })
  const anywhere = new RateLimiterMemory({ points: failuresPerHour, duration: 3600 })
  const failures = new Map<string, { count: number; until: number }>()
  const keyOf = (address: string, email: string) => `${networkOf(address)} ${email}`

  const refuse = (wait_ms: number, limit: 'sign_in' | 'requests_of_address' = 'sign_in') => {
    const retry_after_seconds = Math.max(1, Math.ceil(wait_ms / 1000))
    const again = `Try again in ${retry_after_seconds} s.`
    return new ApiError(
      'rate_limit_exceeded',
      limit === 'sign_in'
        ? `Too many tries to sign in. ${again} A sign-in link works meanwhile.`
        : `Too many requests came from your address. ${again}`,
      { details: { limit, retry_after_seconds } },
    )
  }

  return {
    async countRequest(address) {
      await requests.consume(networkOf(address)).catch(({ msBeforeNext }: RateLimiterRes) => {
        throw refuse(msBeforeNext, 'requests_of_address')
      })
    },
    async begin(address, email) {
      const key = keyOf(address, email)
      const before = failures.get(key)
      if (before && before.until > now()) throw refuse(before.until - now())
      const count = (before?.count ?? 0) + 1
      const over = count - failuresAllowed
      const until = over < 0 ? 0 : now() + 1000 * Math.min(longestBlock_s, firstBlock_s * 2 ** over)
      // The oldest goes: clearing all would unblock who fills it.
      failures.delete(key)
      if (failures.size >= emailsMax) failures.delete(failures.keys().next().value!)
      failures.set(key, { count, until })
      await anywhere.consume(email).catch(({ msBeforeNext }: RateLimiterRes) => {
        throw refuse(msBeforeNext)
      })
    },
    async forget(address, email) {
      const key = keyOf(address, email)
      const { count = 0 } = failures.get(key) ?? {}
      if (count > 1) failures.set(key, { count: count - 1, until: 0 })
      else failures.delete(key)
      await anywhere.reward(email)
    },
    async succeed(address, email) {
      failures.delete(keyOf(address, email))
      await anywhere.reward(email)
    },
  }
}
