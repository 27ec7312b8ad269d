import { once } from 'node:events'
import type { OutgoingHttpHeaders } from 'node:http'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { ApiError } from '../../../contract/errors.ts'
import { type Limits, rateLimitError } from './limits.ts'
import { answered } from './mount.ts'
import { watchCredential } from './running-requests.ts'

declare module 'fastify' {
  interface FastifyInstance {
    limits: Limits
  }
}

/**
 * Streams events as NDJSON until they end, the client disconnects, the service stops, or the key or session of the
 * request ends: a stream may last for hours. A blank line as keepalive stops proxies from closing an idle one.
 */
export async function sendEvents(
  reply: FastifyReply,
  stopping: AbortSignal,
  open: (signal: AbortSignal) => Promise<AsyncGenerator<object | null>>,
): Promise<typeof answered> {
  const { raw, request } = reply
  const stream = request.server.limits.acquireEventStream(request.caller!)
  if ('refused' in stream) throw rateLimitError(stream.refused)
  const ended = new AbortController()
  const end = () => ended.abort()
  const stopWatching = watchCredential(request, end)
  raw.once('close', end)
  // One signal with listeners takes less memory than a signal that follows two: thousands of streams may be idle.
  stopping.addEventListener('abort', end)
  try {
    if (stopping.aborted) end()
    const events = await open(ended.signal)
    reply.hijack()
    raw.writeHead(200, {
      ...(reply.getHeaders() as OutgoingHttpHeaders),
      ...streamHeaders,
      'content-type': 'application/x-ndjson; charset=utf-8',
    })
    raw.flushHeaders()
    for await (const event of events) {
      if (!(await isAllowed(request))) break
      if (!raw.write(event ? `${JSON.stringify(event)}\n` : '\n') && !ended.signal.aborted)
        await once(raw, 'drain', { signal: ended.signal }).catch(() => {})
    }
  } catch (error) {
    if (!reply.sent) throw error
    request.log.warn({ err: error }, 'a stream of events broke')
    raw.destroy()
  } finally {
    stopping.removeEventListener('abort', end)
    stream.release()
    stopWatching()
    if (reply.sent) raw.end()
  }
  return answered
}

/**
 * Checks key or session; the lookup is cached for half a second. A database that does not answer now ends no stream.
 */
const isAllowed = async ({ reauthorize }: FastifyRequest): Promise<boolean> =>
  (await reauthorize?.().then(
    () => true,
    (error) => !(error instanceof ApiError && error.status < 500),
  )) ?? true

/** Headers of a streamed answer: keep proxies from buffering or transforming it. */
export const streamHeaders = { 'cache-control': 'no-cache, no-transform', 'x-accel-buffering': 'no' }
