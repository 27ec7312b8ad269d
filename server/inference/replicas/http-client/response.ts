// An answer as it comes in: its head, and its body in pieces, no faster than whoever reads it wants them.
import { EventEmitter } from 'node:events'
import type { Headers } from './response-parser.ts'

/** What may wait here, in bytes, until the connection is read no further. */
const waiting_max = 64 * 1024

/** Where the pieces come from. */
export interface Source {
  pause(): void
  resume(): void
  destroy(): void
}

/**
 * Says nothing until `resume` is called. `end` comes after the last piece, `error` where the connection breaks before
 * it, `close` once after either, or where the reader destroys it.
 */
export class Incoming extends EventEmitter<{ data: [Buffer]; end: []; error: [Error]; close: [] }> {
  readonly status: number
  readonly headers: Headers
  /** Nothing more will come of it. */
  closed = false
  #source: Source | undefined
  #waiting: Buffer[] = []
  #waiting_bytes = 0
  #flowing = false

  constructor(status: number, headers: Headers, source: Source) {
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
    while (this.#flowing && this.#waiting.length > 0) {
      const piece = this.#waiting.shift()!
      this.#waiting_bytes -= piece.length
      this.emit('data', piece)
    }
    if (!this.#flowing || this.closed) return
    if (this.#source) this.#source.resume()
    else this.#end()
  }

  /** Closes the connection where not all has come. */
  destroy(): void {
    if (this.closed) return
    this.#close()
    this.#source?.destroy()
    this.emit('close')
  }

  // For the connection alone.

  push(piece: Buffer): void {
    if (this.closed) return
    if (this.#flowing && this.#waiting.length === 0) {
      this.emit('data', piece)
      return
    }
    this.#waiting.push(piece)
    this.#waiting_bytes += piece.length
    if (this.#waiting_bytes > waiting_max) this.#source?.pause()
  }

  /** All has come. */
  complete(): void {
    this.#source = undefined
    if (this.#flowing && this.#waiting.length === 0) this.#end()
  }

  break(error: Error): void {
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
    this.#waiting = []
  }
}
