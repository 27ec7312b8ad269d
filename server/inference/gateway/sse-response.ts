// SSE response whose head is delayed until the first event, so that an earlier failure gets its own HTTP status. After
// 15 s of silence, where proxies might close the connection, the head and keepalive comments are sent instead, and a
// later failure becomes an error event.
import type http from 'node:http'
import type { FastifyReply } from 'fastify'
import { ApiError, errorBody } from '../../../contract/errors.ts'
import { streamHeaders } from '../../http/ndjson-response.ts'

const keepalive_ms = 15_000

export interface SseResponse {
  /** Writes the head, with `timing` as Server-Timing, unless a keepalive already did. Returns the raw response. */
  start(timing: string | undefined): http.ServerResponse
  /** Ends a started stream with an error event; rethrows the error if nothing was sent yet. */
  fail(error: unknown): void
}

export function openSseResponse(reply: FastifyReply): SseResponse {
  const out = reply.raw
  let started = false
  const keepalive = setInterval(() => {
    writeHead(undefined)
    out.write(': keepalive\n\n')
  }, keepalive_ms)
  out.once('close', () => clearInterval(keepalive))

  function writeHead(timing: string | undefined): void {
    if (started) return
    started = true
    reply.hijack()
    out.writeHead(200, {
      ...(reply.getHeaders() as http.OutgoingHttpHeaders),
      'content-type': 'text/event-stream; charset=utf-8',
      ...(timing && { 'server-timing': timing }),
      ...streamHeaders,
    })
  }

  return {
    start(timing) {
      clearInterval(keepalive)
      writeHead(timing)
      return out
    },
    fail(error) {
      clearInterval(keepalive)
      if (!started) throw error
      if (!(error instanceof ApiError) && !out.destroyed) reply.log.error({ err: error }, 'a request failed')
      const apiError =
        error instanceof ApiError
          ? error
          : new ApiError('internal_error', 'Something failed inside the service. Its log has the cause.')
      out.end(`data: ${JSON.stringify(errorBody(apiError, true))}\n\n`)
    },
  }
}
