// What is to be known of an event stream while its bytes pass: how many tokens it had, what it used, how it ended.
// Frames are looked at by searching their bytes; only the last ones are parsed. Text of the model cannot be taken for a
// frame's own fields: inside a JSON string a quote never stands without its backslash.
import { errorBody } from '../../../contract/errors.ts'
import { brokenBy } from '../replicas/upstream-error.ts'
import { type TokenCounts, usageIn } from './usage-scanner.ts'

const end = Buffer.from('\n\n')
const noChoices = [Buffer.from('"choices":[]'), Buffer.from('"choices": []')]
const role = Buffer.from('"role":')
const emptyDelta = Buffer.from('"delta":{}')
const emptyText = Buffer.from('"text":""')
const errorStarts = ['{"error"', '{"object":"error"', '{"object": "error"']
const runningUsage = [Buffer.from(',"usage":{'), Buffer.from(', "usage": {')]
const endOfFrame = Buffer.from('}\n\n')
const newline = 0x0a
const data_ = Buffer.from('data: ')
const dataAt = 'data: '.length
const frame_max = 16 * 1024 * 1024

export interface StreamWatch {
  /** Takes bytes as they come; returns whole frames for the client, or undefined while there is none. */
  take(chunk: Buffer): Buffer | undefined
  /** What the stream has said that it used, at its end or until now. */
  usage(): TokenCounts | undefined
  /** Frames that brought text, each a token at least. */
  readonly tokens: number
  /** `[DONE]` has passed. */
  readonly done: boolean
  /** An error event has passed; nothing after it does. */
  readonly failed: boolean
}

interface Options {
  /** Whether the client asked for the frame that tells the usage; it is asked of every replica. */
  keepUsage: boolean
  /** Whether the client asked for the usage with each piece. */
  keepRunning: boolean
  /** The name to put in place of the model's. */
  rename: string | undefined
  /** Whether it comes from another kind of server, whose errors and frames have other shapes. */
  foreign: boolean
  /** Whether the server was asked for the usage with each piece for this service's sake. */
  askedRunning: boolean
}

export function watchStream({ keepUsage, keepRunning, rename, foreign, askedRunning }: Options): StreamWatch {
  let held: Buffer | undefined
  let naming: { from: Buffer; to: Buffer } | undefined
  let total: TokenCounts | undefined
  /** The last frame that told a usage beside a piece. */
  let running: Buffer | undefined
  const usage = () => total ?? (running && usageIn(running))
  const watch = { take, usage, tokens: 0, done: false, failed: false }

  function take(chunk: Buffer): Buffer | undefined {
    if (watch.failed) return undefined
    let data = held ? Buffer.concat([held, chunk]) : chunk
    // Some servers end lines in the other way; inside JSON a carriage return is always spelled as an escape.
    if (foreign && data.includes(13)) data = data.filter((byte) => byte !== 13) as Buffer
    const whole = data.lastIndexOf(end) + end.length
    if (whole < end.length) {
      held = data
      if (held.length > frame_max) watch.failed = true
      return undefined
    }
    held = whole < data.length ? data.subarray(whole) : undefined
    const out: Buffer[] = []
    let changed = false
    let at = 0
    while (at < whole && !watch.failed) {
      // More than one empty line between two frames is allowed.
      if (data[at] === newline) {
        at++
        continue
      }
      const next = data.indexOf(end, at) + end.length
      if (next < end.length) break
      const frame = data.subarray(at, next)
      const passed = pass(frame)
      if (passed !== frame) changed = true
      if (passed) out.push(passed)
      at = next
    }
    if (!changed) return data.subarray(0, at)
    return out.length > 0 ? Buffer.concat(out) : undefined
  }

  /** The frame for the client: itself, another in its place, or none. */
  function pass(given: Buffer): Buffer | undefined {
    const frame = foreign ? plainFrame(given) : given
    // Comments, which keep a connection alive, begin with a colon.
    if (frame[0] !== data_[0]) return frame
    if (frame[dataAt] !== 0x7b) {
      if (frame.toString('latin1', dataAt, dataAt + 6) === '[DONE]') watch.done = true
      return frame
    }
    if (noChoices.some((bytes) => frame.includes(bytes))) {
      total = usageIn(frame) ?? total
      return keepUsage || !total ? renamed(frame) : undefined
    }
    const start = frame.toString('latin1', dataAt, dataAt + 20)
    if (errorStarts.some((each) => start.startsWith(each))) {
      watch.failed = true
      return !foreign
        ? frame
        : Buffer.from(`data: ${JSON.stringify(errorBody(brokenBy(frame.toString('utf8', dataAt).trim()), true))}\n\n`)
    }
    if (!frame.includes(role) && !frame.includes(emptyDelta) && !frame.includes(emptyText)) watch.tokens++
    return renamed(foreign ? noted(frame) : frame)
  }

  /** Notes the usage that stands beside a piece; the frame without it where the client has not asked for it. */
  function noted(frame: Buffer): Buffer {
    const place = runningUsage.map((key) => ({ at: frame.lastIndexOf(key), key })).find(({ at }) => at !== -1)
    if (!place) return frame
    running = frame
    if (!askedRunning || keepRunning) return frame
    const object = frame.toString('utf8', place.at + place.key.length - 1, frame.length - endOfFrame.length)
    // It stands last in nearly all frames; in vLLM's first one other fields follow.
    return isJson(object) ? Buffer.concat([frame.subarray(0, place.at), endOfFrame]) : withoutUsage(frame)
  }

  function renamed(frame: Buffer): Buffer {
    if (rename === undefined) return frame
    let at = naming ? frame.indexOf(naming.from) : -1
    if (at === -1) {
      naming = namingIn(frame, rename) ?? naming
      at = naming ? frame.indexOf(naming.from) : -1
    }
    if (!naming || at === -1 || naming.from.equals(naming.to)) return frame
    return Buffer.concat([frame.subarray(0, at), naming.to, frame.subarray(at + naming.from.length)])
  }

  return watch
}

/**
 * The frame as one line of data, where it has that beside other fields, in more than one line, or without the space
 * that may be left out.
 */
function plainFrame(frame: Buffer): Buffer {
  const simple = frame.indexOf(newline) === frame.length - end.length
  if (simple && (frame[0] === 0x3a || (frame.indexOf(data_) === 0 && frame[dataAt] !== 0x20))) return frame
  const lines = frame.toString('utf8').split('\n')
  const data = lines.filter((line) => line.startsWith('data:')).map((line) => line.slice('data:'.length).trim())
  return data.length > 0 ? Buffer.from(`data: ${data.join(' ')}\n\n`) : frame
}

function withoutUsage(frame: Buffer): Buffer {
  try {
    const { usage: _, ...rest } = JSON.parse(frame.toString('utf8', dataAt))
    return Buffer.from(`data: ${JSON.stringify(rest)}\n\n`)
  } catch {
    return frame
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

/** How the stream spells the model's field, which is the same in nearly all of its frames. */
function namingIn(frame: Buffer, name: string): { from: Buffer; to: Buffer } | undefined {
  const field = /"model"\s*:\s*"(?:[^"\\]|\\.)*"/.exec(frame.toString('utf8'))?.[0]
  return field === undefined
    ? undefined
    : { from: Buffer.from(field), to: Buffer.from(`"model":${JSON.stringify(name)}`) }
}
