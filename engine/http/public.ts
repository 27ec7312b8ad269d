// How the engine meets strangers: on a port, where no service stands in front of it.
import { randomUUID } from 'node:crypto'
import { createServer, type IncomingMessage, type RequestListener, type Server, type ServerResponse } from 'node:http'
import { ApiError } from '../../contract/errors.ts'
import {
  carefulHeaders,
  maxHeadBytes,
  maxHeaderFields,
  type Patience,
  patience,
} from '../../lib/http/client-timeouts.ts'
import { createRefusals } from '../../lib/http/refusals.ts'
import { endSlowBodies, endSlowReaders } from '../../lib/http/slow-clients.ts'
import type { ApiKeys } from './api-keys.ts'

export type PublicAccess = {
  /** Null: whoever reaches the port may call. */
  keys: ApiKeys | null
  /** How long clients may take; what the whole of Tunery gives them where left out. */
  times?: Patience
}

const connectionsMax = 10_000
/** What load balancers ask, which carry no key. */
const open = new Set(['/health', '/health/live', '/health/ready'])

export const newRequestId = () => `req_${randomUUID().replaceAll('-', '')}`

/** A server that gives its clients no more time, connections and bytes than they need. */
export function createPublicServer({ times = patience }: PublicAccess, listener: RequestListener): Server {
  const { head_ms, body_ms, idle_ms, unread_ms } = times
  const { refuse, clientError } = createRefusals(newRequestId)
  const server = createServer(
    {
      maxHeaderSize: maxHeadBytes,
      headersTimeout: head_ms,
      connectionsCheckingInterval: Math.ceil(head_ms / 5),
      // A long answer takes as long as it takes; slow-bodies.ts looks after the request's side.
      requestTimeout: 0,
      keepAliveTimeout: idle_ms,
    },
    listener,
  )
  server.maxConnections = connectionsMax
  server.on('clientError', (error, socket) => clientError(error, socket as import('node:net').Socket))
  endSlowBodies(server, body_ms, refuse)
  endSlowReaders(server, unread_ms)
  return server
}

/** Throws an ApiError where the request is none of a client that may make it. `path` is the route's. */
export function admit({ keys }: PublicAccess, request: IncomingMessage, response: ServerResponse, path: string): void {
  for (const [name, value] of carefulHeaders) response.setHeader(name, value)
  if (request.rawHeaders.length > 2 * maxHeaderFields)
    throw new ApiError('invalid_request', `The request has more than ${maxHeaderFields} header fields. Send fewer.`)
  if (!open.has(path)) keys?.check(request)
}
