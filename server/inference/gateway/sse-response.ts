// The beginning of a stream's answer. It waits for the first bytes, so that a failure before them has a status of its
// own; but not for longer than proxies let a connection be silent: then comments keep it alive, and a failure is an
// event.
import type http from 'node:http'
import type { FastifyReply } from 'fastify'
import { ApiError, errorBody } from '../../../contract/errors.ts'
import { streamHeaders } from '../../http/ndjson-response.ts'

const silence_ms = 15_000

export interface Opening {
  /**
   * Writes the head of the answer where that has not been done, with `timing` in it, and hands over what to write the
   * rest to.
   */
  begin(timing: string | undefined): http.ServerResponse
  /** Ends the stream with an error event where it has begun; throws the error where it has not. */
  fail(error: unknown): void
}

export function openStream(reply: FastifyReply): Opening {
  const out = reply.raw
  let begun = false
  const keepalive = setInterval(() => {
    head(undefined)
    out.write(': keepalive\n\n')
  }, silence_ms)
  out.once('close', () => clearInterval(keepalive))

  function head(timing: string | undefined): void {
    if (begun) return
    begun = true
    reply.hijack()
    out.writeHead(200, {
      ...(reply.getHeaders() as http.OutgoingHttpHeaders),
      'content-type': 'text/event-stream; charset=utf-8',
      ...(timing && { 'server-timing': timing }),
      ...streamHeaders,
    })
  }

  return {
    begin(timing) {
      clearInterval(keepalive)
      head(timing)
      return out
    },
    fail(error) {
      clearInterval(keepalive)
      if (!begun) throw error
      if (!(error instanceof ApiError) && !out.destroyed) reply.log.error({ err: error }, 'a request failed')
      const known =
        error instanceof ApiError
          ? error
          : new ApiError('internal_error', 'Something failed inside the service. Its log has the cause.')
      out.end(`data: ${JSON.stringify(errorBody(known, true))}\n\n`)
    },
  }
}
