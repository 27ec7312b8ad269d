// HTTP server of a stand-alone engine: listens on a port, with no gateway in front.
import { randomUUID } from 'node:crypto'
import { createServer, type IncomingMessage, type RequestListener, type Server, type ServerResponse } from 'node:http'
import { ApiError, errorBody } from '../../contract/errors.ts'
import { Connections } from '../../lib/connections.ts'
import {
  type ClientTimeouts,
  clientTimeouts,
  maxHeadBytes,
  maxHeaderFields,
  securityHeaders,
} from '../../lib/http/client-timeouts.ts'
import { createRefusals } from '../../lib/http/refusals.ts'
import { endSlowBodies, endSlowReaders } from '../../lib/http/slow-clients.ts'
import type { ApiKeys } from './api-keys.ts'

export interface PublicAccess {
  /** Null: no key is required. */
  keys: ApiKeys | null
  /** Client timeouts. Default: those of the whole service. */
  timeouts?: ClientTimeouts
}

const connectionsMax = 10_000
/** Health checks of load balancers, which send no key. */
const keylessPaths = new Set(['/health', '/health/live', '/health/ready'])

export const newRequestId = () => `req_${randomUUID().replaceAll('-', '')}`

/** HTTP server with limits on connections, header size and client timeouts. */
export function createPublicServer({ timeouts = clientTimeouts }: PublicAccess, listener: RequestListener): Server {
  const { head_ms, body_ms, idle_ms, unread_ms } = timeouts
  const { refuse, clientError } = createRefusals(newRequestId)
  const server = createServer(
    {
      maxHeaderSize: maxHeadBytes,
      headersTimeout: head_ms,
      connectionsCheckingInterval: Math.ceil(head_ms / 5),
      // No limit for the response; slow-clients.ts limits the upload of the body.
      requestTimeout: 0,
      keepAliveTimeout: idle_ms,
    },
    (request, response) => {
      if (connections.refusal(request, () => request.socket.remoteAddress ?? '') === undefined)
        return listener(request, response)
      const head = { ...Object.fromEntries(securityHeaders), 'content-type': 'application/json', 'retry-after': '1' }
      const error = new ApiError('overloaded', 'All connections of the engine are taken. Try again in a moment.')
      // Its connection is one of those that are kept for health checks.
      response.writeHead(error.status, { ...head, connection: 'close' }).end(JSON.stringify(errorBody(error, true)))
    },
  )
  // One address may be a gateway with all clients behind it.
  const connections = new Connections(server, { connections_max: connectionsMax, address_max: connectionsMax })
  server.on('clientError', (error, socket) => clientError(error, socket as import('node:net').Socket))
  endSlowBodies(server, body_ms, refuse)
  endSlowReaders(server, unread_ms)
  return server
}

/**
 * Sets the security headers and checks the number of header fields and the API key. `path` is the matched route. Throws
 * ApiError invalid_request or invalid_api_key.
 */
export function admit({ keys }: PublicAccess, request: IncomingMessage, response: ServerResponse, path: string): void {
  for (const [name, value] of securityHeaders) response.setHeader(name, value)
  if (request.rawHeaders.length > 2 * maxHeaderFields)
    throw new ApiError('invalid_request', `The request has more than ${maxHeaderFields} header fields. Send fewer.`)
  if (!keylessPaths.has(path)) keys?.check(request)
}
