// What stands before every request, whoever sends it and whatever for: headers that tell browsers to be careful, the origins that may
// read answers, and how much of a connection a client may have before it has proved anything.
import cors from '@fastify/cors'
import type { FastifyInstance, FastifyReply } from 'fastify'
import { ApiError } from '../../contract/errors.ts'

export interface GuardSettings {
  /** Origins that browsers may read answers from; `*` among them is any. None: no CORS header at all. */
  cors_origins: readonly string[]
  /** Addresses and networks whose forwarded headers are believed. */
  trusted_proxies: readonly string[]
  /** Connections at once, of all clients together. */
  max_connections: number
}

/** How long a client may take, in milliseconds. */
export interface Patience {
  /** From the first byte of a request, or the beginning of its connection, to the end of its head. */
  head_ms: number
  /** How long a body may stand still; see slow-bodies.ts. */
  body_ms: number
  /** How long a connection may be kept without a request: longer than the 60 s for which load balancers keep theirs. */
  idle_ms: number
}
export const patience: Patience = { head_ms: 15_000, body_ms: 60_000, idle_ms: 72_000 }

/** Bytes of a request's head, its address included. Node's own default, named as it is a promise. */
export const maxHeadBytes = 16_384
const maxHeaderFields = 100

// Nothing here is meant to be shown in a browser but /docs, which sets a policy of its own. Answers hold what is one account's alone, and
// sometimes a key that is shown once: no cache is to keep them.
const careful = {
  'x-content-type-options': 'nosniff',
  'x-frame-options': 'DENY',
  'content-security-policy': "default-src 'none'; frame-ancestors 'none'",
  'referrer-policy': 'no-referrer',
  'cross-origin-resource-policy': 'same-origin',
  'cache-control': 'no-store',
}
const carefulHeaders = Object.entries(careful)

/** The same for answers that are written by hand. */
export const carefulHead = carefulHeaders.map(([name, value]) => `${name}: ${value}\r\n`).join('')

/** Half a year, and for this name alone: what else is served under it is not known here. */
const transportSecurity = 'max-age=15552000'

// Set one by one here and not by @fastify/helmet: the values never change, and its hook costs 20 µs of a request, this loop 1 µs.
export function setCarefulHeaders(reply: FastifyReply): void {
  reply.header('x-request-id', reply.request.id)
  for (const [name, value] of carefulHeaders) reply.header(name, value)
}

/** Hooks itself into every request, before all others. */
export async function guard(app: FastifyInstance, { cors_origins, trusted_proxies, max_connections }: GuardSettings): Promise<void> {
  app.server.maxConnections = max_connections
  const behindProxy = trusted_proxies.length > 0
  app.addHook('onRequest', (request, reply, done) => {
    setCarefulHeaders(reply)
    // Only who ends TLS knows of it: without a trusted proxy that says so, the connection was plain, where browsers ignore this header.
    if (behindProxy && request.protocol === 'https') reply.header('strict-transport-security', transportSecurity)
    if (request.raw.rawHeaders.length > 2 * maxHeaderFields)
      return done(new ApiError('invalid_request', `The request has more than ${maxHeaderFields} header fields. Send fewer.`) as never)
    done()
  })
  if (cors_origins.length > 0) await allowOrigins(app, new Set(cors_origins))
}

async function allowOrigins(app: FastifyInstance, origins: ReadonlySet<string>): Promise<void> {
  await app.register(cors, {
    // Asked by a function, so that an origin that is not among them learns nothing: not even which methods there are.
    origin: origins.has('*') ? '*' : (origin, answer) => answer(null, origin !== undefined && origins.has(origin)),
    methods: ['GET', 'HEAD', 'POST', 'PUT', 'DELETE'],
    exposedHeaders: ['x-request-id', 'x-ratelimit-limit', 'x-ratelimit-remaining', 'x-ratelimit-reset', 'retry-after', 'x-should-retry'],
    credentials: false,
    maxAge: 600,
    // Its refusal would be of another shape than every other error.
    strictPreflight: false,
  })
}
