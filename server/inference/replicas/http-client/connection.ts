// One connection to a server, with one request at a time on it.
import net from 'node:net'
import tls from 'node:tls'
import { Incoming } from './response.ts'
import { createAnswerParser } from './response-parser.ts'

const connectTimeout_ms = 5000
/** A server that closed a kept connection has done so before it read the request: the news of that is here at once. */
const staleNews_ms = 50
/** A server closes a connection that has been idle for the time that it said: a request must not meet it on the way. */
const margin_ms = 1000

/** Where a server listens. `hostname` is without the brackets of an address. */
export type Place = { socketPath: string } | { hostname: string; port: number; secure: boolean }

/** The request was not answered. `taken` says whether the server may have begun to work on it. */
export class NotAnswered extends Error {
  readonly taken: boolean
  constructor(message: string, taken: boolean) {
    super(message)
    this.taken = taken
  }
}

/** It was closed, as far as can be told before the server had read the request. */
export class StaleConnection extends NotAnswered {}

export interface Connection {
  /**
   * Sends a request and resolves with the head of its answer. When `signal` aborts, the connection is closed, also in
   * the middle of the answer.
   */
  ask(text: string, signal: AbortSignal): Promise<Incoming>
  /** How long it may be idle, by what the server said with its last answer. */
  readonly idle_ms: number
  close(): void
}

/**
 * `free` is told when it can be asked again, `gone` when it never can. Neither keeps the process alive while it is
 * free.
 */
export function openConnection(
  place: Place,
  free: (connection: Connection) => void,
  gone: (connection: Connection) => void,
): Connection {
  const socket = connect(place)
  const secure = 'secure' in place && place.secure
  let connected = false
  let paused = false
  let over = false
  /** Whether a request before the present one was answered on it. */
  let kept = false
  let keep = false
  let asked_at = 0
  let heard = false
  let signal: AbortSignal | undefined
  let waiting: { resolve(answer: Incoming): void; reject(error: Error): void } | undefined
  let answer: Incoming | undefined

  const source = {
    pause() {
      if (paused) return
      paused = true
      socket.pause()
    },
    resume() {
      if (!paused) return
      paused = false
      socket.resume()
    },
    destroy: () => end(new Error('given up')),
  }
  const abort = () => end(new Error('given up'))

  const parser = createAnswerParser({
    head(head) {
      keep = head.keep
      const hint = /\btimeout=(\d+)/.exec(head.headers['keep-alive'] ?? '')?.[1]
      connection.idle_ms = hint === undefined ? Number.POSITIVE_INFINITY : Number(hint) * 1000 - margin_ms
      answer = new Incoming(head.status, head.headers, source)
      waiting?.resolve(answer)
      waiting = undefined
    },
    data: (bytes) => answer?.push(bytes),
    end(more) {
      const whole = answer
      answer = undefined
      settled()
      // One that answered before it had read the request may still be reading it.
      if (over || !keep || more || socket.writableLength > 0) end(new Error('closed'))
      else {
        kept = true
        source.resume()
        socket.unref()
        free(connection)
      }
      whole?.complete()
    },
  })

  function settled(): void {
    signal?.removeEventListener('abort', abort)
    signal = undefined
  }

  function failure(error: NodeJS.ErrnoException): NotAnswered {
    const closed = error.code === 'ECONNRESET' || error.code === 'EPIPE'
    const early = performance.now() - asked_at < staleNews_ms && !heard
    if (kept && closed && early && !signal?.aborted) return new StaleConnection(error.message, false)
    return new NotAnswered(error.message, connected && (error.code !== 'EPIPE' || kept))
  }

  function end(error: Error): void {
    if (over) return
    over = true
    clearTimeout(timer)
    socket.destroy()
    gone(connection)
    waiting?.reject(failure(error))
    waiting = undefined
    settled()
    // Not while it is being aborted: the client's leaving is told by who aborts, and is no break.
    if (answer) process.nextTick((broken: Incoming) => broken.break(error), answer)
    answer = undefined
  }

  const hangUp = () => end(Object.assign(new Error('socket hang up'), { code: 'ECONNRESET' }))
  const timer = setTimeout(
    () => end(new Error(`no connection within ${connectTimeout_ms / 1000} s`)),
    connectTimeout_ms,
  )
  socket
    .once(secure ? 'secureConnect' : 'connect', () => {
      clearTimeout(timer)
      connected = true
    })
    .on('data', (bytes) => {
      heard = true
      try {
        parser.take(bytes)
      } catch (error) {
        end(error as Error)
      }
    })
    .on('end', () => {
      parser.close()
      hangUp()
    })
    .on('error', end)
    .on('close', hangUp)

  const connection = {
    idle_ms: Number.POSITIVE_INFINITY,
    ask(text: string, giving: AbortSignal) {
      return new Promise<Incoming>((resolve, reject) => {
        waiting = { resolve, reject }
        signal = giving
        asked_at = performance.now()
        heard = false
        signal.addEventListener('abort', abort)
        if (signal.aborted) return abort()
        parser.expect()
        if (kept) socket.ref()
        socket.write(text)
      })
    },
    close: () => end(new Error('closed')),
  }
  return connection
}

function connect(place: Place): net.Socket {
  const options = { noDelay: true, keepAlive: true, keepAliveInitialDelay: 1000 }
  if ('socketPath' in place) return net.connect({ path: place.socketPath })
  const { hostname: host, port, secure } = place
  if (!secure) return net.connect({ host, port, ...options })
  // A certificate is asked for by name, of which an address is none.
  return tls.connect({ host, port, servername: net.isIP(host) ? '' : host, ...options } as tls.ConnectionOptions)
}
