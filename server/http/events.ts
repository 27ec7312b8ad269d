import { Readable } from 'node:stream'
import type { FastifyReply } from 'fastify'
import { eventLines } from '../event-log.ts'
import { answered } from './mount.ts'
import { streamHeaders } from './stream.ts'

/** Answers with events as they come, one JSON object a line, until there are no more, the client has left, or the service stops. */
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
