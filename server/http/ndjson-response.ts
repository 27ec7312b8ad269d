import { Readable } from 'node:stream'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { ApiError } from '../../contract/errors.ts'
import { toNdjson } from '../events/event-streams.ts'
import { answered } from './mount.ts'

/**
 * Streams events as NDJSON until they end, the client disconnects, the service stops, or the key or session of the
 * request ends: a stream may last for hours.
 */
export async function sendEvents(
  reply: FastifyReply,
  stopping: AbortSignal,
  open: (signal: AbortSignal) => Promise<AsyncGenerator<object | null>>,
): Promise<typeof answered> {
  const gone = new AbortController()
  reply.raw.on('close', () => gone.abort())
  const events = await open(AbortSignal.any([gone.signal, stopping]))
  reply.header('content-type', 'application/x-ndjson; charset=utf-8').headers(streamHeaders)
  await reply.send(Readable.from(toNdjson(whileAllowed(events, reply.request))))
  return answered
}

/** Checks key or session before each event and keepalive; the lookup is cached for half a second. */
async function* whileAllowed<T>(events: AsyncGenerator<T>, { reauthorize }: FastifyRequest): AsyncGenerator<T> {
  for await (const event of events) {
    const ended = await reauthorize?.().then(
      () => false,
      // A database that does not answer now ends no stream.
      (error) => error instanceof ApiError && error.status < 500,
    )
    if (ended) return
    yield event
  }
}

/** Headers of a streamed answer: keep proxies from buffering or transforming it. */
export const streamHeaders = { 'cache-control': 'no-cache, no-transform', 'x-accel-buffering': 'no' }
