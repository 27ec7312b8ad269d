import { Readable } from 'node:stream'
import type { FastifyReply } from 'fastify'
import { eventLines } from '../events/event-streams.ts'
import { answered } from './mount.ts'

/**
 * Answers with events as they come, one JSON object a line, until there are no more, the client has left, or the
 * service stops.
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
  await reply.send(Readable.from(eventLines(events)))
  return answered
}

/**
 * Headers of an answer that is sent as it comes into being: nothing between here and the client may hold it back or cut
 * it.
 */
export const streamHeaders = { 'cache-control': 'no-cache, no-transform', 'x-accel-buffering': 'no' }
