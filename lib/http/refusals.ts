// Error answers outside of routes: to bytes that are not HTTP, and to clients that are too slow.
import { once } from 'node:events'
import type { IncomingMessage } from 'node:http'
import type { Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { ApiError, errorBody } from '../../contract/errors.ts'
import { maxHeadBytes, securityHeaders } from './client-timeouts.ts'

/** How long a refused client's remaining bytes are read, so that it gets to read the error. */
const drain_ms = 2000
const securityHead = securityHeaders.map(([name, value]) => `${name}: ${value}\r\n`).join('')

/** Writes an error to a raw connection and closes it, even if the client keeps its side open. */
export type Refuse = (socket: Socket, status: string, message: string) => void

export function createRefusals(newRequestId: () => string) {
  const refuse: Refuse = (socket, status, message) => {
    const body = JSON.stringify(errorBody(new ApiError('invalid_request', message), false))
    const head =
      `HTTP/1.1 ${status}\r\nContent-Type: application/json\r\nContent-Length: ${Buffer.byteLength(body)}\r\n` +
      `x-request-id: ${newRequestId()}\r\n${securityHead}Connection: close`
    socket.end(`${head}\r\n\r\n${body}`)
    const cut = setTimeout(() => socket.destroy(), drain_ms)
    socket.once('close', () => clearTimeout(cut))
  }

  /** Node's `clientError`: answers unreadable HTTP, and heads that are too large or too late, in our error shape. */
  function clientError(error: Error & { code?: string | undefined }, socket: Socket): void {
    if (error.code === 'ECONNRESET' || !socket.writable) {
      socket.destroy()
      return
    }
    if (error.code === 'HPE_HEADER_OVERFLOW')
      refuse(
        socket,
        '431 Request Header Fields Too Large',
        `The head of the HTTP request is larger than ${maxHeadBytes} bytes.`,
      )
    else if (error.code === 'ERR_HTTP_REQUEST_TIMEOUT')
      refuse(socket, '408 Request Timeout', 'The head of the HTTP request did not come in time.')
    else refuse(socket, '400 Bad Request', `The request could not be read as HTTP: ${error.message}`)
  }

  return { refuse, clientError }
}

/** Reads and discards the rest of a request's body, for `drain_ms` at most. */
export async function drain(request: IncomingMessage): Promise<void> {
  if (request.complete || request.destroyed) return
  request.unpipe()
  request.resume()
  const timeout = new AbortController()
  await Promise.race([
    once(request, 'end'),
    once(request, 'close'),
    sleep(drain_ms, undefined, { signal: timeout.signal }),
  ]).catch(() => {})
  timeout.abort()
}
