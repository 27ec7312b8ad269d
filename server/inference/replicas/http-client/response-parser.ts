// The answers on one connection, told from its bytes as HTTP/1.1 frames them (RFC 9112). Where an answer ends must
// never be a guess: what is not framed as it should be is Malformed, and its connection is of no more use.

/** Names in lower case; the values of one that stands more than once are joined by commas. */
export type Headers = Readonly<Record<string, string | undefined>>

export interface Head {
  status: number
  headers: Headers
  /** Whether the connection may be used again after this answer. */
  keep: boolean
}

export interface AnswerListener {
  head(head: Head): void
  data(bytes: Buffer): void
  /** `more`: bytes follow that nobody has asked for. */
  end(more: boolean): void
}

export interface AnswerParser {
  /** The next bytes are to be those of another answer. */
  expect(): void
  /** Tells the listener what the bytes hold. Throws Malformed. */
  take(bytes: Buffer): void
  /** The server has sent all that it will: where nothing else ends an answer, that does. */
  close(): void
}

export class Malformed extends Error {}

/** Bytes of a head, or of a line between two chunks. */
const held_max = 64 * 1024
const headEnd = Buffer.from('\r\n\r\n')
const lineEnd = Buffer.from('\r\n')
const nothing = Buffer.alloc(0)

type State = 'unasked' | 'head' | 'body' | 'chunk_size' | 'chunk' | 'chunk_end' | 'trailers' | 'ended'

export function createAnswerParser(listener: AnswerListener): AnswerParser {
  let state: State = 'unasked'
  let held: Buffer = nothing
  /** Bytes that the body or the chunk still has to bring; infinite where the connection's end is the body's. */
  let left = 0

  function begin(head: Head): void {
    const { status, headers } = head
    if (status === 101) throw new Malformed('it changed the protocol unasked')
    // Told before the answer, which is still to come.
    if (status < 200) return
    const coding = headers['transfer-encoding']
    const length = headers['content-length']
    const empty = status === 204 || status === 304
    if (coding !== undefined && (length !== undefined || coding.toLowerCase() !== 'chunked'))
      throw new Malformed('its answer is framed in two ways or an unknown one')
    if (length !== undefined && !/^\d{1,15}$/.test(length)) throw new Malformed('the length of its answer is no number')
    left = empty ? 0 : length === undefined ? Number.POSITIVE_INFINITY : Number(length)
    if (coding !== undefined && !empty) state = 'chunk_size'
    else state = left > 0 ? 'body' : 'ended'
    listener.head({ ...head, keep: head.keep && (state === 'chunk_size' || left !== Number.POSITIVE_INFINITY) })
  }

  function chunk(line: string): void {
    const size = /^([0-9a-f]{1,12})[ \t]*(?:;|$)/i.exec(line)?.[1]
    if (size === undefined) throw new Malformed('the size of a chunk is no number')
    left = Number.parseInt(size, 16)
    state = left === 0 ? 'trailers' : 'chunk'
  }

  /** Takes a line between two chunks, or after the last. */
  function between(line: string): void {
    if (state === 'chunk_size') chunk(line)
    else if (state === 'chunk_end') {
      if (line !== '') throw new Malformed('a chunk is longer than its size')
      state = 'chunk_size'
    } else if (line === '') state = 'ended'
  }

  /** Takes what of the body or the chunk is there; returns where it ends. */
  function body(data: Buffer, at: number): number {
    const piece = at === 0 && data.length <= left ? data : data.subarray(at, Math.min(data.length, at + left))
    left -= piece.length
    if (left === 0) state = state === 'chunk' ? 'chunk_end' : 'ended'
    listener.data(piece)
    return at + piece.length
  }

  return {
    expect() {
      state = 'head'
      held = nothing
    },

    take(bytes) {
      const data = held.length > 0 ? Buffer.concat([held, bytes]) : bytes
      held = nothing
      for (let at = 0; at < data.length; ) {
        if (state === 'unasked') throw new Malformed('it said more than it was asked')
        if (state === 'body' || state === 'chunk') at = body(data, at)
        else {
          const mark = state === 'head' ? headEnd : lineEnd
          const stop = data.indexOf(mark, at)
          if ((stop === -1 ? data.length : stop) - at > held_max) throw new Malformed('its head has no end')
          if (stop === -1) {
            held = data.subarray(at)
            return
          }
          const text = data.toString('latin1', at, stop)
          at = stop + mark.length
          if (state === 'head') begin(readHead(text))
          else between(text)
        }
        if (state === 'ended') {
          state = 'unasked'
          return listener.end(at < data.length)
        }
      }
    },

    close() {
      if (state !== 'body' || left !== Number.POSITIVE_INFINITY) return
      state = 'unasked'
      listener.end(false)
    },
  }
}

function readHead(text: string): Head {
  const lines = text.split('\r\n')
  const status = /^HTTP\/1\.([01]) ([1-9]\d\d)(?: |$)/.exec(lines[0]!)
  if (!status) throw new Malformed('its answer does not begin as one of HTTP/1.1')
  const headers: Record<string, string> = Object.create(null)
  for (let index = 1; index < lines.length; index++) {
    const line = lines[index]!
    const field = /^([\w!#$%&'*+.^`|~-]+):(.*)$/.exec(line)
    if (!field) throw new Malformed('a line of its head is not one')
    const name = field[1]!.toLowerCase()
    const value = field[2]!.trim()
    headers[name] = name in headers ? `${headers[name]}, ${value}` : value
  }
  const keep = status[1] === '1' && !/\bclose\b/i.test(headers.connection ?? '')
  return { status: Number(status[2]), headers, keep }
}
