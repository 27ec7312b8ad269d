// Timeouts and size limits for clients of a listening process, and the security headers of its answers.

/** All in milliseconds. */
export interface ClientTimeouts {
  /** From the start of a connection, or the first byte of a later request, to the end of the request's head. */
  head_ms: number
  /** Longest time without progress of a request body; see slow-clients.ts. */
  body_ms: number
  /** How long a body may take, besides what its size deserves. Default: 60 times `body_ms`. */
  body_total_ms?: number
  /** Keep-alive timeout. Longer than the 60 s of common load balancers, so that they close first. */
  idle_ms: number
  /** Longest time for which a client may read nothing of a waiting answer. */
  unread_ms: number
}
export const clientTimeouts: ClientTimeouts = { head_ms: 15_000, body_ms: 60_000, idle_ms: 72_000, unread_ms: 60_000 }

/** Largest request head in bytes, with its URL. Equals Node's default; documented, so set explicitly. */
export const maxHeadBytes = 16_384
export const maxHeaderFields = 100

// For an API: only the dashboard's pages are shown in browsers, with their own policy. `no-store`, as answers hold
// private data and sometimes a key that is shown once.
export const securityHeaders: readonly (readonly [string, string])[] = Object.entries({
  'x-content-type-options': 'nosniff',
  'x-frame-options': 'DENY',
  'content-security-policy': "default-src 'none'; frame-ancestors 'none'",
  'referrer-policy': 'no-referrer',
  'cross-origin-resource-policy': 'same-origin',
  'cache-control': 'no-store',
})
