// SSE response whose head is delayed until the first event, so that an earlier failure gets its own HTTP status. After
// 15 s of silence, where proxies might close the connection, the head and keepalive comments are sent instead, and a
// later failure becomes an error event.
import type http from 'node:http'
import { type Readable, Transform, type Writable } from 'node:stream'
import type { FastifyBaseLogger, FastifyReply } from 'fastify'
import { ApiError, errorBody } from '../../../../contract/errors.ts'
import { clientTimeouts } from '../../../../lib/http/client-timeouts.ts'
import { streamHeaders } from '../../../platform/http/ndjson-response.ts'

const keepalive_ms = 15_000

interface SseResponse {
  /** Writes the head with these headers, unless a keepalive already did. Returns the raw response. */
  start(headers: Record<string, string>): http.ServerResponse
  /** Ends a started stream with an error event; rethrows the error if nothing was sent yet. */
  fail(error: unknown): void
}

export function openSseResponse(reply: FastifyReply): SseResponse {
  const out = reply.raw
  let started = false
  const keepalive = setInterval(() => {
    writeHead({})
    out.write(': keepalive\n\n')
  }, keepalive_ms)
  out.once('close', () => clearInterval(keepalive))

  function writeHead(headers: Record<string, string>): void {
    if (started) return
    started = true
    reply.hijack()
    out.writeHead(200, {
      ...(reply.getHeaders() as http.OutgoingHttpHeaders),
      'content-type': 'text/event-stream; charset=utf-8',
      ...headers,
      ...streamHeaders,
    })
  }

  return {
    start(headers) {
      clearInterval(keepalive)
      writeHead(headers)
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

/** Starts a response whose events pass through `events` on their way to the client. */
export const startThrough = (events: Transform, response: SseResponse, log: FastifyBaseLogger) => ({
  start(headers: Record<string, string>) {
    pipeToClient(events, response.start(headers), log)
    return events
  },
})

/**
 * Rewrites the events of a stream: `read` resolves with the text that takes the place of an event, `head` returns what
 * goes before those of a chunk. The relay passes whole events.
 */
export const rewriteEvents = (read: (event: string) => Promise<string>, head = () => '') =>
  new Transform({
    async transform(bytes: Buffer, _encoding, done) {
      try {
        let text = head()
        for (const event of bytes.toString('utf8').split('\n\n')) text += await read(event)
        done(null, text)
      } catch (error) {
        done(error as Error)
      }
    },
  })

/** Pipes events to a client, and closes its connection if it stops reading. */
export function pipeToClient(
  events: Readable,
  out: Writable,
  log: FastifyBaseLogger,
  unread_ms = clientTimeouts.unread_ms,
): void {
  let timer: NodeJS.Timeout | undefined
  const stopTimer = () => clearTimeout(timer)
  const startTimer = () => {
    stopTimer()
    timer = setTimeout(() => out.destroy(), unread_ms).unref()
  }
  events.on('pause', startTimer).on('resume', stopTimer).on('end', startTimer)
  out.on('finish', stopTimer).on('close', () => {
    stopTimer()
    events.destroy()
  })
  events.on('error', (error) => log.error({ err: error }, 'the stream of a response failed'))
  events.on('close', () => {
    if (!events.readableEnded) out.destroy()
  })
  events.pipe(out)
}
