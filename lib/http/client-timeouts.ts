// What a client may take of a listening process before it has proved anything, and the headers that tell browsers to be
// careful.

/** How long a client may take, in milliseconds. */
export interface Patience {
  /** From the first byte of a request, or the beginning of its connection, to the end of its head. */
  head_ms: number
  /** How long a body may stand still; see slow-bodies.ts. */
  body_ms: number
  /** How long a connection may be kept without a request: longer than the 60 s for which load balancers keep theirs. */
  idle_ms: number
  /** How long a client may leave what it was sent unread. */
  unread_ms: number
}
export const patience: Patience = { head_ms: 15_000, body_ms: 60_000, idle_ms: 72_000, unread_ms: 60_000 }

/** Bytes of a request's head, its address included. Node's own default, named as it is a promise. */
export const maxHeadBytes = 16_384
export const maxHeaderFields = 100

// Nothing here is meant to be shown in a browser but /docs, which sets a policy of its own. Answers hold what is one
// account's alone, and sometimes a key that is shown once: no cache is to keep them.
export const carefulHeaders: readonly (readonly [string, string])[] = Object.entries({
  'x-content-type-options': 'nosniff',
  'x-frame-options': 'DENY',
  'content-security-policy': "default-src 'none'; frame-ancestors 'none'",
  'referrer-policy': 'no-referrer',
  'cross-origin-resource-policy': 'same-origin',
  'cache-control': 'no-store',
})
