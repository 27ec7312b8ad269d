import { ApiError } from '../../contract/errors.ts'

/** Throws rate_limit_exceeded where an account has as much waiting as it may: who asks for ever more would hold up all that comes after. */
export function requireTurn(waiting: number, max: number, what: 'jobs' | 'exports'): void {
  if (waiting < max) return
  throw new ApiError('rate_limit_exceeded', `This account has ${waiting} ${what} waiting, as many as it may. Wait for one to begin, or cancel one.`, {
    details: { limit: `waiting_${what}`, max, retry_after_seconds: 60 },
  })
}
