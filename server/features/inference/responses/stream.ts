// The stream of a response: reads the events of a chat answer and writes those of the Responses API.
import type { Transform } from 'node:stream'
import type { ChatChunk } from '../../../../contract/chat.ts'
import type { ErrorBody } from '../../../../contract/errors.ts'
import type { Usage } from '../../../../contract/sampling.ts'
import { rewriteEvents } from '../gateway/sse-response.ts'
import type { ResponseBuilder } from './events.ts'

/** `store` is called once the response has ended, before its last event is sent. */
export function createResponseStream(
  builder: ResponseBuilder,
  store: () => Promise<void>,
  now: () => number,
): Transform {
  let finish_reason: string | null = null
  let usage: Usage | null = null

  /** Resolves with the text to send. */
  async function read(event: string): Promise<string> {
    if (!event.startsWith('data: ')) return event.startsWith(':') ? `${event}\n\n` : ''
    const data = event.slice('data: '.length)
    if (data === '[DONE]') {
      builder.end(finish_reason, usage, now())
      await store()
      return builder.takeEvents() + builder.closing()
    }
    const chunk = JSON.parse(data) as ChatChunk | ErrorBody
    if ('error' in chunk) {
      builder.fail(chunk.error)
      await store()
      return builder.takeEvents()
    }
    usage = chunk.usage ?? usage
    for (const choice of chunk.choices ?? []) {
      builder.add(choice.delta ?? {})
      finish_reason = choice.finish_reason ?? finish_reason
    }
    return builder.takeEvents()
  }

  builder.begin()
  return rewriteEvents(read, () => builder.takeEvents())
}
