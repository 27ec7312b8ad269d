// An answer as a stream of Server-Sent Events.
import type { ServerResponse } from 'node:http'
import { errorBody } from '../../../contract/errors.ts'
import type { ReplyPart } from '../../chat/reply-parser.ts'
import type { PlaceLogprobs } from '../../sampling/logprobs.ts'
import { sendError } from '../io.ts'
import type { Sink } from './choices.ts'
import { createBeat } from './flush-schedule.ts'
import type { Dialect } from './format.ts'

// Proxies cut a connection on which nothing comes, by default after a minute.
const keepaliveMs = 15_000
// One for the process: its streams share the cores.
const beat = createBeat()

export const streamHeaders = {
  'content-type': 'text/event-stream; charset=utf-8',
  'cache-control': 'no-cache, no-transform',
  'x-accel-buffering': 'no',
}

type Unsent = { index: number; part: ReplyPart; places: PlaceLogprobs[] | null }

/**
 * Streams. The status line waits for the first text (or the first keepalive), so that a failure before it is a plain
 * error with its own status, which a gateway may try elsewhere. While the reader is slow, text is put together instead
 * of frames piled up.
 */
export function streamSink(response: ServerResponse, dialect: Dialect, withUsage: boolean): Sink {
  const opened = new Set<number>()
  let unsent: Unsent[] = []
  let written_at_ms = Number.NEGATIVE_INFINITY
  let held: NodeJS.Timeout | null = null
  const keepalive = setInterval(() => {
    start()
    if (!response.writableNeedDrain) response.write(': keepalive\n\n')
  }, keepaliveMs)
  const stop = () => {
    clearInterval(keepalive)
    if (held) clearTimeout(held)
  }
  // A client that leaves before the first text gets no event any more, and the timer must go with it.
  response.once('close', stop)
  response.once('close', beat.join())

  const start = () => {
    if (!response.headersSent) response.writeHead(200, streamHeaders)
  }
  const open = (index: number): string => {
    if (opened.has(index)) return ''
    opened.add(index)
    keepalive.refresh()
    start()
    return dialect.opening(index).map(frame).join('')
  }
  const frames = ({ index, part, places }: Unsent) => open(index) + frame(dialect.part(index, part, places))
  const takeUnsent = () => {
    const text = unsent.map(frames).join('')
    unsent = []
    return text
  }
  const keep = (next: Unsent) => {
    const last = unsent.at(-1)
    if (last?.index === next.index && merged(last.part, next.part)) {
      if (next.places) last.places = [...(last.places ?? []), ...next.places]
    } else unsent.push(next)
  }
  const writeUnsent = () => {
    if (held) clearTimeout(held)
    held = null
    if (unsent.length === 0 || response.writableNeedDrain || response.destroyed) return
    written_at_ms = performance.now()
    response.write(takeUnsent())
  }
  response.on('drain', writeUnsent)

  return {
    part(index, part, places) {
      keep({ index, part, places })
      if (beat.due(written_at_ms)) writeUnsent()
      // Where no more text comes, it goes out without that.
      else held ??= setTimeout(writeUnsent, 2 * beat.ms())
    },
    ended(index, finish_reason, places) {
      response.write(`${takeUnsent()}${open(index)}${frame(dialect.closing(index, finish_reason, places))}`)
    },
    completed(usage) {
      stop()
      response.end(`${withUsage ? frame(dialect.usage(usage)) : ''}data: [DONE]\n\n`)
    },
    failed(error) {
      stop()
      if (response.headersSent) response.end(takeUnsent() + frame(JSON.stringify(errorBody(error, true))))
      else sendError(response, error)
    },
  }
}

/** Adds the later part to the earlier one where they go on with the same thing. */
function merged(last: ReplyPart, next: ReplyPart): boolean {
  if (last.kind === 'tool_call' && next.kind === 'tool_call') {
    if (next.id !== undefined || next.index !== last.index) return false
    last.arguments += next.arguments
    return true
  }
  if (last.kind === 'tool_call' || next.kind === 'tool_call' || last.kind !== next.kind) return false
  last.text += next.text
  return true
}

/**
 * JSON leaves these as they are, and some clients' readers (those with Python's `splitlines`) take them for the end of
 * a line.
 */
const lineEnds = /[\u0085\u2028\u2029]/g

/** One event of a stream. */
export function frame(data: string): string {
  return `data: ${data.replace(lineEnds, (end) => `\\u${end.charCodeAt(0).toString(16).padStart(4, '0')}`)}\n\n`
}
