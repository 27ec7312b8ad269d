// The client of this page. A session's cookie signs its requests; changes carry the session's CSRF token.
import { Tunery } from '../../sdk/index.ts'
import { reportLost, reportReached } from './connection.ts'
import { withOneKey } from './once.ts'

let csrf: string | undefined

/** Set by the session once it is known; see session.ts. */
export function setCsrfToken(token: string | undefined): void {
  csrf = token
}

/** For requests that are not made by the client below. */
export const csrfToken = (): string | undefined => csrf

/** Hears whether the service answers at all. */
async function watchedFetch(input: RequestInfo | URL, init?: RequestInit): Promise<Response> {
  try {
    const response = await fetch(input, init)
    reportReached()
    return response
  } catch (error) {
    if (!init?.signal?.aborted) void reportLost()
    throw error
  }
}

/** Retries are TanStack Query's, which shows them; a request that hangs fails after 30 s. */
export const tunery = new Tunery({
  baseUrl: '/v1',
  csrfToken,
  maxRetries: 0,
  timeout_ms: 30_000,
  fetch: withOneKey(watchedFetch),
})
