// A response whose body arrives in chunks, with backpressure: the socket is paused while the reader is slow.
import { EventEmitter } from 'node:events'

/** Names in lower case; repeated headers are joined by commas. */
export type Headers = Readonly<Record<string, string | undefined>>

/** Bytes buffered before the socket is paused. */
const buffered_max = 64 * 1024

/** The connection that the body is read from. */
interface BodySource {
  pause(): void
  resume(): void
  destroy(): void
}

/**
 * Starts paused; call `resume()`. Emits `end` after the last chunk, `error` if the connection breaks first, and `close`
 * once after either or after `destroy()`.
 */
export class HttpResponse extends EventEmitter<{ data: [Buffer]; end: []; error: [Error]; close: [] }> {
  readonly status: number
  readonly headers: Headers
  /** Emits no more events. */
  closed = false
  #source: BodySource | undefined
  #buffered: Buffer[] = []
  #buffered_bytes = 0
  #flowing = false

  constructor(status: number, headers: Headers, source: BodySource) {
    super()
    this.status = status
    this.headers = headers
    this.#source = source
  }

  pause(): void {
    this.#flowing = false
  }

  resume(): void {
    this.#flowing = true
    while (this.#flowing && this.#buffered.length > 0) {
      const chunk = this.#buffered.shift()!
      this.#buffered_bytes -= chunk.length
      this.emit('data', chunk)
    }
    if (!this.#flowing || this.closed) return
    if (this.#source) this.#source.resume()
    else this.#end()
  }

  /** Stops reading, and closes the connection if the body is incomplete. */
  destroy(): void {
    if (this.closed) return
    this.#close()
    this.#source?.destroy()
    this.emit('close')
  }

  // The methods below are for the connection only.

  push(chunk: Buffer): void {
    if (this.closed) return
    if (this.#flowing && this.#buffered.length === 0) {
      this.emit('data', chunk)
      return
    }
    this.#buffered.push(chunk)
    this.#buffered_bytes += chunk.length
    if (this.#buffered_bytes > buffered_max) this.#source?.pause()
  }

  /** The whole body has arrived. */
  complete(): void {
    this.#source = undefined
    if (this.#flowing && this.#buffered.length === 0) this.#end()
  }

  fail(error: Error): void {
    if (this.closed) return
    this.#close()
    if (this.listenerCount('error') > 0) this.emit('error', error)
    this.emit('close')
  }

  #end(): void {
    if (this.closed) return
    this.#close()
    this.emit('end')
    this.emit('close')
  }

  #close(): void {
    this.closed = true
    this.#buffered = []
  }
}
