// Streaming parser for the server-sent events of our engine, and of upstreams once they are brought into the same form
// (serving/upstreams/stream.ts): counts tokens, reads the usage and detects the end. For speed it searches the bytes of
// an event and does not parse its JSON. Generated text cannot be mistaken for a field, because quotes inside of a JSON
// string are escaped.
import { findUsage, type TokenCounts } from '../../serving/index.ts'

const eventEnd = Buffer.from('\n\n')
const noChoices = Buffer.from('"choices":[]')
const role = Buffer.from('"role":')
const emptyDelta = Buffer.from('"delta":{}')
const emptyText = Buffer.from('"text":""')
const errorStart = Buffer.from('{"error"')
const end = Buffer.from('[DONE]')
const newline = 0x0a
const data_ = Buffer.from('data: ')
const dataOffset = 'data: '.length
const event_max = 16 * 1024 * 1024

interface SseParser {
  /** Takes the next bytes and returns complete events for the client; undefined if there are none. */
  feed(chunk: Buffer): Buffer | undefined
  /** The stream's final usage. */
  usage(): TokenCounts | undefined
  /** Events with text, each of at least one token. */
  readonly tokens: number
  /** `[DONE]` has passed. */
  readonly done: boolean
  /** An error event has passed, or an event was too long; later bytes are dropped. */
  readonly failed: boolean
}

/** `keepUsage`: whether the client requested the final usage event; this service always does. */
export function createSseParser(keepUsage: boolean): SseParser {
  let partial: Buffer | undefined
  let total: TokenCounts | undefined
  const parser = { feed, usage: () => total, tokens: 0, done: false, failed: false }

  function feed(chunk: Buffer): Buffer | undefined {
    if (parser.failed) return undefined
    const data = partial ? Buffer.concat([partial, chunk]) : chunk
    const complete = data.lastIndexOf(eventEnd) + eventEnd.length
    if (complete < eventEnd.length) {
      partial = data
      if (partial.length > event_max) parser.failed = true
      return undefined
    }
    partial = complete < data.length ? data.subarray(complete) : undefined
    const out: Buffer[] = []
    let dropped = false
    let at = 0
    while (at < complete && !parser.failed) {
      // Extra empty lines between events are allowed.
      if (data[at] === newline) {
        at++
        continue
      }
      const next = data.indexOf(eventEnd, at) + eventEnd.length
      if (next < eventEnd.length) break
      const event = data.subarray(at, next)
      if (passes(event)) out.push(event)
      else dropped = true
      at = next
    }
    if (!dropped) return data.subarray(0, at)
    return out.length > 0 ? Buffer.concat(out) : undefined
  }

  /** Reads an event. Whether the client gets it. */
  function passes(event: Buffer): boolean {
    // Not data, for example a keepalive comment.
    if (event[0] !== data_[0]) return true
    if (event[dataOffset] !== 0x7b) {
      if (startsWith(event, end)) parser.done = true
      return true
    }
    if (event.includes(noChoices)) {
      total = findUsage(event) ?? total
      return keepUsage || !total
    }
    if (startsWith(event, errorStart)) parser.failed = true
    else if (!event.includes(role) && !event.includes(emptyDelta) && !event.includes(emptyText)) parser.tokens++
    return true
  }

  return parser
}

const startsWith = (event: Buffer, text: Buffer) =>
  event.compare(text, 0, text.length, dataOffset, Math.min(event.length, dataOffset + text.length)) === 0
