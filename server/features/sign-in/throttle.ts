// Throttles sign-ins: per address, and per email from an address, so that guessing blocks only who guesses.
import { ApiError } from '../../../contract/errors.ts'
import { networkOf } from '../../../lib/connections.ts'
import type { Redis } from '../../platform/redis/connection.ts'
import { createWindowCounters } from '../../platform/redis/window-counter.ts'
import { createFailures } from './failures.ts'

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
const requestsPerMinute = 30
/** Failures of all addresses together, for one email: guessing from many at once is slow too. */
const failuresPerHour = 100
const minute_ms = 60_000
const hour_ms = 3_600_000

export function createSignInThrottle(now: () => number, redis?: Redis): SignInThrottle {
  const counters = createWindowCounters(redis)
  const requests = counters('public-requests', minute_ms)
  const anywhere = counters('sign-ins', hour_ms)
  const failures = createFailures(now, redis)
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
      const { count, left_ms } = await requests.add(networkOf(address))
      if (count > requestsPerMinute) throw refuse(left_ms, 'requests_of_address')
    },
    async begin(address, email) {
      const wait_ms = await failures.begin(keyOf(address, email))
      if (wait_ms > 0) throw refuse(wait_ms)
      const { count, left_ms } = await anywhere.add(email)
      if (count > failuresPerHour) throw refuse(left_ms)
    },
    async forget(address, email) {
      await failures.forget(keyOf(address, email))
      await anywhere.subtract(email)
    },
    async succeed(address, email) {
      await failures.clear(keyOf(address, email))
      await anywhere.subtract(email)
    },
  }
}
