// Streaming parser for server-sent events: counts tokens, reads the usage, detects the end and rewrites events for the
// client. For speed it searches the bytes of an event and rarely parses its JSON. Generated text cannot be mistaken for
// a field, because quotes inside of a JSON string are escaped.
import { errorBody } from '../../../contract/errors.ts'
import { streamError } from '../replicas/upstream-error.ts'
import { findUsage, type TokenCounts } from './usage-scanner.ts'

const eventEnd = Buffer.from('\n\n')
const noChoices = [Buffer.from('"choices":[]'), Buffer.from('"choices": []')]
const role = Buffer.from('"role":')
const emptyDelta = Buffer.from('"delta":{}')
const emptyText = Buffer.from('"text":""')
const errorStarts = ['{"error"', '{"object":"error"', '{"object": "error"']
const chunkUsage = [Buffer.from(',"usage":{'), Buffer.from(', "usage": {')]
const endOfEvent = Buffer.from('}\n\n')
const newline = 0x0a
const carriageReturn = 0x0d
const data_ = Buffer.from('data: ')
const dataOffset = 'data: '.length
const event_max = 16 * 1024 * 1024

export interface SseParser {
  /** Takes the next bytes and returns complete events for the client; undefined if there are none. */
  feed(chunk: Buffer): Buffer | undefined
  /** The stream's final usage, or the last one sent with a chunk. */
  usage(): TokenCounts | undefined
  /** Events with text, each of at least one token. */
  readonly tokens: number
  /** `[DONE]` has passed. */
  readonly done: boolean
  /** An error event has passed, or an event was too long; later bytes are dropped. */
  readonly failed: boolean
}

interface Options {
  /** Whether the client requested the final usage event; this service always does. */
  keepUsage: boolean
  /** Whether the client requested usage with each chunk. */
  keepChunkUsage: boolean
  /** The model name to put into events; undefined leaves it unchanged. */
  renameModelTo: string | undefined
  /** Whether it comes from an upstream, whose errors and events can have other shapes. */
  fromUpstream: boolean
  /** Whether this service requested usage with each chunk. */
  addedChunkUsage: boolean
}

export function createSseParser({
  keepUsage,
  keepChunkUsage,
  renameModelTo,
  fromUpstream,
  addedChunkUsage,
}: Options): SseParser {
  let partial: Buffer | undefined
  let modelField: { from: Buffer; to: Buffer } | undefined
  let total: TokenCounts | undefined
  /** The last text event that also had a usage. */
  let lastChunkUsage: Buffer | undefined
  const usage = () => total ?? (lastChunkUsage && findUsage(lastChunkUsage))
  const parser = { feed, usage, tokens: 0, done: false, failed: false }

  function feed(chunk: Buffer): Buffer | undefined {
    if (parser.failed) return undefined
    let data = partial ? Buffer.concat([partial, chunk]) : chunk
    // Some servers end lines with CRLF. Inside JSON a carriage return is always escaped, so all can be removed.
    if (fromUpstream && data.includes(carriageReturn)) data = data.filter((byte) => byte !== carriageReturn) as Buffer
    const complete = data.lastIndexOf(eventEnd) + eventEnd.length
    if (complete < eventEnd.length) {
      partial = data
      if (partial.length > event_max) parser.failed = true
      return undefined
    }
    partial = complete < data.length ? data.subarray(complete) : undefined
    const out: Buffer[] = []
    let changed = false
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
      const rewritten = rewrite(event)
      if (rewritten !== event) changed = true
      if (rewritten) out.push(rewritten)
      at = next
    }
    if (!changed) return data.subarray(0, at)
    return out.length > 0 ? Buffer.concat(out) : undefined
  }

  /** The event for the client: unchanged, rewritten, or undefined to drop it. */
  function rewrite(raw: Buffer): Buffer | undefined {
    const event = fromUpstream ? normalizeEvent(raw) : raw
    // Not data, for example a keepalive comment.
    if (event[0] !== data_[0]) return event
    if (event[dataOffset] !== 0x7b) {
      if (event.toString('latin1', dataOffset, dataOffset + 6) === '[DONE]') parser.done = true
      return event
    }
    if (noChoices.some((bytes) => event.includes(bytes))) {
      total = findUsage(event) ?? total
      return keepUsage || !total ? renameModel(event) : undefined
    }
    const start = event.toString('latin1', dataOffset, dataOffset + 20)
    if (errorStarts.some((each) => start.startsWith(each))) {
      parser.failed = true
      return !fromUpstream
        ? event
        : Buffer.from(
            `data: ${JSON.stringify(errorBody(streamError(event.toString('utf8', dataOffset).trim()), true))}\n\n`,
          )
    }
    if (!event.includes(role) && !event.includes(emptyDelta) && !event.includes(emptyText)) parser.tokens++
    return renameModel(fromUpstream ? takeChunkUsage(event) : event)
  }

  /** Remembers the usage in a text event, and removes it unless the client requested it. */
  function takeChunkUsage(event: Buffer): Buffer {
    const match = chunkUsage.map((key) => ({ at: event.lastIndexOf(key), key })).find(({ at }) => at !== -1)
    if (!match) return event
    lastChunkUsage = event
    if (!addedChunkUsage || keepChunkUsage) return event
    const object = event.toString('utf8', match.at + match.key.length - 1, event.length - endOfEvent.length)
    // Usage is the last field of nearly all events; in vLLM's first one other fields follow.
    return isJson(object) ? Buffer.concat([event.subarray(0, match.at), endOfEvent]) : withoutUsage(event)
  }

  function renameModel(event: Buffer): Buffer {
    if (renameModelTo === undefined) return event
    let at = modelField ? event.indexOf(modelField.from) : -1
    if (at === -1) {
      modelField = findModelField(event, renameModelTo) ?? modelField
      at = modelField ? event.indexOf(modelField.from) : -1
    }
    if (!modelField || at === -1 || modelField.from.equals(modelField.to)) return event
    return Buffer.concat([event.subarray(0, at), modelField.to, event.subarray(at + modelField.from.length)])
  }

  return parser
}

/** Reduces an event to a single `data: ` line: drops other fields, joins several lines, adds the optional space. */
function normalizeEvent(event: Buffer): Buffer {
  const simple = event.indexOf(newline) === event.length - eventEnd.length
  if (simple && (event[0] === 0x3a || (event.indexOf(data_) === 0 && event[dataOffset] !== 0x20))) return event
  const lines = event.toString('utf8').split('\n')
  const data = lines.filter((line) => line.startsWith('data:')).map((line) => line.slice('data:'.length).trim())
  return data.length > 0 ? Buffer.from(`data: ${data.join(' ')}\n\n`) : event
}

function withoutUsage(event: Buffer): Buffer {
  try {
    const { usage: _, ...rest } = JSON.parse(event.toString('utf8', dataOffset))
    return Buffer.from(`data: ${JSON.stringify(rest)}\n\n`)
  } catch {
    return event
  }
}

function isJson(text: string): boolean {
  try {
    JSON.parse(text)
    return true
  } catch {
    return false
  }
}

/** The bytes of the `model` field, which are the same in nearly all events of a stream, and their replacement. */
function findModelField(event: Buffer, name: string): { from: Buffer; to: Buffer } | undefined {
  const field = /"model"\s*:\s*"(?:[^"\\]|\\.)*"/.exec(event.toString('utf8'))?.[0]
  return field === undefined
    ? undefined
    : { from: Buffer.from(field), to: Buffer.from(`"model":${JSON.stringify(name)}`) }
}
