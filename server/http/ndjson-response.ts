import { Readable } from 'node:stream'
import type { FastifyReply } from 'fastify'
import { toNdjson } from '../events/event-streams.ts'
import { answered } from './mount.ts'

/** Streams events as NDJSON until they end, the client disconnects or the service stops. */
export async function sendEvents(
  reply: FastifyReply,
  stopping: AbortSignal,
  open: (signal: AbortSignal) => Promise<AsyncGenerator<object | null>>,
): Promise<typeof answered> {
  const gone = new AbortController()
  reply.raw.on('close', () => gone.abort())
  const events = await open(AbortSignal.any([gone.signal, stopping]))
  reply.header('content-type', 'application/x-ndjson; charset=utf-8').headers(streamHeaders)
  await reply.send(Readable.from(toNdjson(events)))
  return answered
}

/** Headers of a streamed answer: keep proxies from buffering or transforming it. */
export const streamHeaders = { 'cache-control': 'no-cache, no-transform', 'x-accel-buffering': 'no' }
