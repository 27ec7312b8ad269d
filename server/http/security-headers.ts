// What stands before every request, whoever sends it and whatever for: headers that tell browsers to be careful, the
// origins that may read answers, and how many connections there may be. What every listening process has of it is in
// lib/http/.
import cors from '@fastify/cors'
import type { FastifyInstance, FastifyReply } from 'fastify'
import { ApiError } from '../../contract/errors.ts'
import { carefulHeaders, maxHeaderFields } from '../../lib/http/client-timeouts.ts'

export interface GuardSettings {
  /** Origins that browsers may read answers from; `*` among them is any. None: no CORS header at all. */
  cors_origins: readonly string[]
  /** Addresses and networks whose forwarded headers are believed. */
  trusted_proxies: readonly string[]
  /** Connections at once, of all clients together. */
  max_connections: number
}

/** Half a year, and for this name alone: what else is served under it is not known here. */
const transportSecurity = 'max-age=15552000'

// Set one by one here and not by @fastify/helmet: the values never change, and its hook costs 20 µs of a request, this
// loop 1 µs.
export function setCarefulHeaders(reply: FastifyReply): void {
  reply.header('x-request-id', reply.request.id)
  for (const [name, value] of carefulHeaders) reply.header(name, value)
}

/** Hooks itself into every request, before all others. */
export async function guard(
  app: FastifyInstance,
  { cors_origins, trusted_proxies, max_connections }: GuardSettings,
): Promise<void> {
  app.server.maxConnections = max_connections
  const behindProxy = trusted_proxies.length > 0
  app.addHook('onRequest', (request, reply, done) => {
    setCarefulHeaders(reply)
    // Only who ends TLS knows of it: without a trusted proxy that says so, the connection was plain, where browsers
    // ignore this header.
    if (behindProxy && request.protocol === 'https') reply.header('strict-transport-security', transportSecurity)
    if (request.raw.rawHeaders.length > 2 * maxHeaderFields)
      return done(
        new ApiError(
          'invalid_request',
          `The request has more than ${maxHeaderFields} header fields. Send fewer.`,
        ) as never,
      )
    done()
  })
  if (cors_origins.length > 0) await allowOrigins(app, new Set(cors_origins))
}

async function allowOrigins(app: FastifyInstance, origins: ReadonlySet<string>): Promise<void> {
  await app.register(cors, {
    // Asked by a function, so that an origin that is not among them learns nothing: not even which methods there are.
    origin: origins.has('*') ? '*' : (origin, answer) => answer(null, origin !== undefined && origins.has(origin)),
    methods: ['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE'],
    exposedHeaders: [
      ...[
        'x-request-id',
        'x-ratelimit-limit',
        'x-ratelimit-remaining',
        'x-ratelimit-reset',
        'retry-after',
        'x-should-retry',
      ],
      ...['accept-ranges', 'content-disposition', 'content-range', 'etag'],
    ],
    credentials: false,
    maxAge: 600,
    // Its refusal would be of another shape than every other error.
    strictPreflight: false,
  })
}
