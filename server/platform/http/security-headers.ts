// Hooks that run on every request: security headers, CORS and limits on connections and header fields. The parts that
// the engine shares are in lib/http/.
import cors from '@fastify/cors'
import type { FastifyInstance, FastifyReply } from 'fastify'
import { ApiError } from '../../../contract/errors.ts'
import { addressesIn, addressShare, Connections, type Refused } from '../../../lib/connections.ts'
import { maxHeaderFields, securityHeaders } from '../../../lib/http/client-timeouts.ts'
import { rateLimitError } from './limits.ts'

declare module 'fastify' {
  interface FastifyInstance {
    connections: Connections
  }
}

export interface SecuritySettings {
  /** CORS origins; `*` allows any. Empty: no CORS headers at all. */
  cors_origins: readonly string[]
  /** Addresses and networks whose X-Forwarded-* headers are trusted. */
  trusted_proxies: readonly string[]
  /** Most open connections of all clients together. */
  max_connections: number
  /** Most of an address before it has shown a key; undefined: its share of all. */
  max_connections_per_address?: number | undefined
  /** The address under which browsers reach the service, if it is set. */
  public_url?: string | undefined
}

/** HSTS for half a year, without includeSubDomains: other services may run on subdomains. */
const transportSecurity = 'max-age=15552000'

// Not @fastify/helmet: the values are constant, and its hook costs 20 µs per request, this loop 1 µs.
export function setSecurityHeaders(reply: FastifyReply): void {
  reply.header('x-request-id', reply.request.id)
  for (const [name, value] of securityHeaders) reply.header(name, value)
}

/** Adds the hooks. Call it first: they run before all others. */
export async function addSecurityHooks(
  app: FastifyInstance,
  { cors_origins, trusted_proxies, max_connections, max_connections_per_address }: SecuritySettings,
): Promise<void> {
  const connections = new Connections(app.server, {
    connections_max: max_connections,
    address_max: max_connections_per_address ?? addressShare(max_connections),
    isProxy: addressesIn(trusted_proxies),
  })
  app.decorate('connections', connections)
  const behindProxy = trusted_proxies.length > 0
  app.addHook('onRequest', (request, reply, done) => {
    setSecurityHeaders(reply)
    // Only a trusted proxy that terminates TLS can say so. On a plain connection browsers ignore this header.
    if (behindProxy && request.protocol === 'https') reply.header('strict-transport-security', transportSecurity)
    if (request.raw.rawHeaders.length > 2 * maxHeaderFields)
      return done(
        new ApiError(
          'invalid_request',
          `The request has more than ${maxHeaderFields} header fields. Send fewer.`,
        ) as never,
      )
    const refused = connections.refusal(request.raw, () => request.ip)
    if (refused === undefined) return done()
    // Its connection is one of those that are kept for health checks.
    reply.header('connection', 'close')
    done(noConnection(refused, connections) as never)
  })
  if (cors_origins.length > 0) await allowOrigins(app, new Set(cors_origins))
}

const noConnection = (refused: Refused, { address_max }: Connections) =>
  refused === 'all'
    ? new ApiError('overloaded', 'All connections of the service are taken. Send the request again in a moment.')
    : rateLimitError({ limit: 'connections_per_address', max: address_max, resets_at: Date.now() + 1000 })

async function allowOrigins(app: FastifyInstance, origins: ReadonlySet<string>): Promise<void> {
  await app.register(cors, {
    // A function, so that an origin that is not allowed gets no CORS header at all, not even the list of methods.
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
        'x-weights',
        'x-warnings',
        'server-timing',
      ],
      ...['accept-ranges', 'content-disposition', 'content-range', 'etag'],
    ],
    credentials: false,
    maxAge: 600,
    // The plugin's own refusal would not have the shape of our errors.
    strictPreflight: false,
  })
}
