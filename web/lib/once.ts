// One idempotency key for the same request: a double click, or a second try after an answer that got lost, makes one
// thing. Another body is another request, and so is the same one again after it has succeeded.

/** A second click of a double click may come after the answer to the first. */
const repeat_ms = 1000
/** Requests without an answer that are remembered; the oldest are forgotten. */
const remembered_max = 100

type Fetch = (input: RequestInfo | URL, init?: RequestInit) => Promise<Response>

/**
 * Sends requests as `fetch` does. Those with an idempotency key and a text as body keep it until they have succeeded.
 */
export function withOneKey(fetch: Fetch): Fetch {
  const keys = new Map<string, string>()
  return async (input, init) => {
    const headers = new Headers(init?.headers)
    const sent = headers.get('idempotency-key')
    if (sent === null || typeof init?.body !== 'string') return fetch(input, init)
    const request = `${init.method} ${input}\n${init.body}`
    const key = keys.get(request) ?? sent
    keys.delete(request)
    if (keys.size >= remembered_max) keys.delete(keys.keys().next().value!)
    keys.set(request, key)
    headers.set('idempotency-key', key)
    const forget = () => {
      if (keys.get(request) === key) keys.delete(request)
    }
    const response = await fetch(input, { ...init, headers })
    if (response.ok) setTimeout(forget, repeat_ms)
    // Refused: nothing was made. Other failures may have made it.
    else if (response.status < 500) forget()
    return response
  }
}
