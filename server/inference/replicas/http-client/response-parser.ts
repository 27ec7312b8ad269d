// Parser for the HTTP/1.1 responses of one connection (RFC 9112). Strict about framing, because a wrong end of one
// response would mix it with the next: anything ambiguous throws MalformedResponse, and the connection must be closed.

/** Names in lower case; repeated headers are joined by commas. */
export type Headers = Readonly<Record<string, string | undefined>>

export interface ResponseHead {
  status: number
  headers: Headers
  /** Whether the connection can be reused after this response. */
  keepAlive: boolean
}

export interface ResponseListener {
  head(head: ResponseHead): void
  data(bytes: Buffer): void
  /** `hasExtraBytes`: unsolicited bytes follow the response. */
  end(hasExtraBytes: boolean): void
}

export interface ResponseParser {
  /** A request was sent: the next bytes belong to a new response. */
  expectResponse(): void
  /** Parses bytes and calls the listener. Throws MalformedResponse. */
  feed(bytes: Buffer): void
  /** The server closed its side, which ends a body that has no other end. */
  endOfInput(): void
}

export class MalformedResponse extends Error {}

/** Maximum bytes of a head, or of a line between two chunks. */
const buffered_max = 64 * 1024
const headEnd = Buffer.from('\r\n\r\n')
const lineEnd = Buffer.from('\r\n')
const nothing = Buffer.alloc(0)

type State = 'idle' | 'head' | 'body' | 'chunk_size' | 'chunk' | 'chunk_end' | 'trailers' | 'ended'

export function createResponseParser(listener: ResponseListener): ResponseParser {
  let state: State = 'idle'
  let buffered: Buffer = nothing
  /** Bytes missing from the body or the chunk; infinite if the body ends with the connection. */
  let remaining = 0

  function startBody(head: ResponseHead): void {
    const { status, headers } = head
    if (status === 101) throw new MalformedResponse('it switched protocols without a request')
    // An interim response such as 103 Early Hints: the final one follows.
    if (status < 200) return
    const coding = headers['transfer-encoding']
    const length = headers['content-length']
    const empty = status === 204 || status === 304
    if (coding !== undefined && (length !== undefined || coding.toLowerCase() !== 'chunked'))
      throw new MalformedResponse('its response has conflicting or unknown framing')
    if (length !== undefined && !/^\d{1,15}$/.test(length))
      throw new MalformedResponse('its content-length is not a number')
    remaining = empty ? 0 : length === undefined ? Number.POSITIVE_INFINITY : Number(length)
    if (coding !== undefined && !empty) state = 'chunk_size'
    else state = remaining > 0 ? 'body' : 'ended'
    listener.head({
      ...head,
      keepAlive: head.keepAlive && (state === 'chunk_size' || remaining !== Number.POSITIVE_INFINITY),
    })
  }

  function startChunk(line: string): void {
    const size = /^([0-9a-f]{1,12})[ \t]*(?:;|$)/i.exec(line)?.[1]
    if (size === undefined) throw new MalformedResponse('a chunk size is not a number')
    remaining = Number.parseInt(size, 16)
    state = remaining === 0 ? 'trailers' : 'chunk'
  }

  /** Handles a line between two chunks, or after the last one. */
  function readFramingLine(line: string): void {
    if (state === 'chunk_size') startChunk(line)
    else if (state === 'chunk_end') {
      if (line !== '') throw new MalformedResponse('a chunk is longer than its size')
      state = 'chunk_size'
    } else if (line === '') state = 'ended'
  }

  /** Passes on the available bytes of the body or chunk and returns the position after them. */
  function readBody(data: Buffer, at: number): number {
    const piece = at === 0 && data.length <= remaining ? data : data.subarray(at, Math.min(data.length, at + remaining))
    remaining -= piece.length
    if (remaining === 0) state = state === 'chunk' ? 'chunk_end' : 'ended'
    listener.data(piece)
    return at + piece.length
  }

  return {
    expectResponse() {
      state = 'head'
      buffered = nothing
    },

    feed(bytes) {
      const data = buffered.length > 0 ? Buffer.concat([buffered, bytes]) : bytes
      buffered = nothing
      for (let at = 0; at < data.length; ) {
        if (state === 'idle') throw new MalformedResponse('it sent bytes without a request')
        if (state === 'body' || state === 'chunk') at = readBody(data, at)
        else {
          const mark = state === 'head' ? headEnd : lineEnd
          const stop = data.indexOf(mark, at)
          if ((stop === -1 ? data.length : stop) - at > buffered_max)
            throw new MalformedResponse('its head is too long')
          if (stop === -1) {
            buffered = data.subarray(at)
            return
          }
          const text = data.toString('latin1', at, stop)
          at = stop + mark.length
          if (state === 'head') startBody(readHead(text))
          else readFramingLine(text)
        }
        if (state === 'ended') {
          state = 'idle'
          return listener.end(at < data.length)
        }
      }
    },

    endOfInput() {
      if (state !== 'body' || remaining !== Number.POSITIVE_INFINITY) return
      state = 'idle'
      listener.end(false)
    },
  }
}

function readHead(text: string): ResponseHead {
  const lines = text.split('\r\n')
  const status = /^HTTP\/1\.([01]) ([1-9]\d\d)(?: |$)/.exec(lines[0]!)
  if (!status) throw new MalformedResponse('its response is not HTTP/1.1')
  const headers: Record<string, string> = Object.create(null)
  for (let index = 1; index < lines.length; index++) {
    const line = lines[index]!
    const field = /^([\w!#$%&'*+.^`|~-]+):(.*)$/.exec(line)
    if (!field) throw new MalformedResponse('a header line is malformed')
    const name = field[1]!.toLowerCase()
    const value = field[2]!.trim()
    headers[name] = name in headers ? `${headers[name]}, ${value}` : value
  }
  const keep = status[1] === '1' && !/\bclose\b/i.test(headers.connection ?? '')
  return { status: Number(status[2]), headers, keepAlive: keep }
}
