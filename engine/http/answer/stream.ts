// Response as a stream of server-sent events.
import type { ServerResponse } from 'node:http'
import { errorBody } from '../../../contract/errors.ts'
import type { ReplyPart } from '../../chat/reply.ts'
import type { TokenLogprobs } from '../../sampling/logprobs.ts'
import { sendError } from '../io.ts'
import type { AnswerSink } from './choices.ts'
import { createFlushSchedule } from './flush-schedule.ts'
import type { AnswerFormat } from './format.ts'

// Proxies close idle connections, by default after a minute.
const keepalive_ms = 15_000
// One for the process: its streams share the cores.
const flushSchedule = createFlushSchedule()

const streamHeaders = {
  'content-type': 'text/event-stream; charset=utf-8',
  'cache-control': 'no-cache, no-transform',
  'x-accel-buffering': 'no',
}

interface UnsentPart {
  index: number
  part: ReplyPart
  tokenLogprobs: TokenLogprobs[] | null
}

/**
 * Sink of a streamed response. Sends the head with the first text or keepalive, so that an earlier failure is a plain
 * error with its own status, which a gateway can retry elsewhere. While the client reads slowly, merges text instead of
 * queueing events.
 */
export function streamSink(response: ServerResponse, format: AnswerFormat, withUsage: boolean): AnswerSink {
  const openedChoices = new Set<number>()
  let unsent: UnsentPart[] = []
  let written_at_ms = Number.NEGATIVE_INFINITY
  let flushTimer: NodeJS.Timeout | null = null
  const keepalive = setInterval(() => {
    sendHead()
    if (!response.writableNeedDrain) response.write(': keepalive\n\n')
  }, keepalive_ms)
  const stop = () => {
    clearInterval(keepalive)
    if (flushTimer) clearTimeout(flushTimer)
  }
  // Without this, the timer would outlive a client that disconnects before the first text.
  response.once('close', stop)
  response.once('close', flushSchedule.join())

  const sendHead = () => {
    if (!response.headersSent) response.writeHead(200, streamHeaders)
  }
  const openChoice = (index: number): string => {
    if (openedChoices.has(index)) return ''
    openedChoices.add(index)
    keepalive.refresh()
    sendHead()
    return format.openingChunks(index).map(sseEvent).join('')
  }
  const eventsOf = ({ index, part, tokenLogprobs }: UnsentPart) =>
    openChoice(index) + sseEvent(format.partChunk(index, part, tokenLogprobs))
  const drainUnsent = () => {
    const text = unsent.map(eventsOf).join('')
    unsent = []
    return text
  }
  const enqueue = (next: UnsentPart) => {
    const last = unsent.at(-1)
    if (last?.index === next.index && mergeInto(last.part, next.part)) {
      if (next.tokenLogprobs) last.tokenLogprobs = [...(last.tokenLogprobs ?? []), ...next.tokenLogprobs]
    } else unsent.push(next)
  }
  const flush = () => {
    if (flushTimer) clearTimeout(flushTimer)
    flushTimer = null
    if (unsent.length === 0 || response.writableNeedDrain || response.destroyed) return
    written_at_ms = performance.now()
    response.write(drainUnsent())
  }
  response.on('drain', flush)

  return {
    part(index, part, tokenLogprobs) {
      enqueue({ index, part, tokenLogprobs })
      if (flushSchedule.due(written_at_ms)) flush()
      // Flush late if no further text triggers it.
      else flushTimer ??= setTimeout(flush, 2 * flushSchedule.interval_ms())
    },
    ended(index, finish_reason, tokenLogprobs) {
      response.write(
        `${drainUnsent()}${openChoice(index)}${sseEvent(format.closingChunk(index, finish_reason, tokenLogprobs))}`,
      )
    },
    completed(usage) {
      stop()
      response.end(`${withUsage ? sseEvent(format.usageChunk(usage)) : ''}data: [DONE]\n\n`)
    },
    failed(error) {
      stop()
      if (response.headersSent) response.end(drainUnsent() + sseEvent(JSON.stringify(errorBody(error, true))))
      else sendError(response, error)
    },
  }
}

/** Appends `next` to `last` if both are of the same kind and the same call. Returns whether it did. */
function mergeInto(last: ReplyPart, next: ReplyPart): boolean {
  if (last.kind === 'tool_call' && next.kind === 'tool_call') {
    if (next.id !== undefined || next.index !== last.index) return false
    last.arguments += next.arguments
    return true
  }
  if (last.kind === 'tool_call' || next.kind === 'tool_call' || last.kind !== next.kind) return false
  last.text += next.text
  return true
}

/** JSON does not escape these, and some clients (those using Python's `splitlines`) treat them as line breaks. */
const lineSeparators = /[\u0085\u2028\u2029]/g

/** One server-sent event. */
export function sseEvent(data: string): string {
  return `data: ${data.replace(lineSeparators, (end) => `\\u${end.charCodeAt(0).toString(16).padStart(4, '0')}`)}\n\n`
}
