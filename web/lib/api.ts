// The client of this page. A session's cookie signs its requests; changes carry the session's CSRF token.
import { Tunery, TuneryConnectionError, TuneryError } from '../../sdk/index.ts'
import { reportLost, reportReached } from './connection.ts'

let csrf: string | undefined

/** Set by the session once it is known; see session.ts. */
export function setCsrfToken(token: string | undefined): void {
  csrf = token
}

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
  csrfToken: () => csrf,
  maxRetries: 0,
  timeout_ms: 30_000,
  fetch: watchedFetch,
})

/** A JSON request that the client has no method for. Throws its errors. */
export async function send<T = unknown>(
  method: 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE',
  path: string,
  body?: object,
  signal: AbortSignal = AbortSignal.timeout(30_000),
): Promise<T> {
  const response = await watchedFetch(`/v1${path}`, {
    method,
    signal,
    headers: {
      ...(body && { 'content-type': 'application/json' }),
      ...(csrf && method !== 'GET' && { 'x-csrf-token': csrf }),
    },
    ...(body && { body: JSON.stringify(body) }),
  }).catch((error: Error) => {
    throw new TuneryConnectionError(`The service cannot be reached: ${error.message}.`, { cause: error })
  })
  const answer = await response.json().catch(() => undefined)
  if (response.ok) return answer as T
  throw new TuneryError(
    response.status,
    response.headers,
    answer?.error ?? { message: `The service answered ${response.status}.` },
  )
}
