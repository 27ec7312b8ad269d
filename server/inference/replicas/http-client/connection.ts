// One HTTP/1.1 connection to a server; it carries one request at a time.
import net from 'node:net'
import tls from 'node:tls'
import { HttpResponse } from './response.ts'
import { createResponseParser } from './response-parser.ts'

const connectTimeout_ms = 5000
/** A reset within this time of sending means that the server had closed the idle connection before the request. */
const staleWindow_ms = 50
/** Idle connections close this long before the server's own timeout, so that no request crosses the server's close. */
const idleMargin_ms = 1000

/** Where a server listens. An IPv6 `hostname` has no brackets. */
export type ServerAddress = { socketPath: string } | { hostname: string; port: number; secure: boolean }

/** The request got no complete response. `mayHaveStarted`: the server may have begun to process it. */
export class NoResponse extends Error {
  readonly mayHaveStarted: boolean
  constructor(message: string, mayHaveStarted: boolean) {
    super(message)
    this.mayHaveStarted = mayHaveStarted
  }
}

/** A reused connection was already closed. The server most likely did not read the request, so it is safe to resend. */
export class StaleConnection extends NoResponse {}

export interface Connection {
  /**
   * Sends a serialized request and resolves when the head of its response has arrived. An abort of `signal` closes the
   * connection, also in the middle of the body.
   */
  send(text: string, signal: AbortSignal): Promise<HttpResponse>
  /** How long it may stay idle, from the Keep-Alive header of the last response. */
  readonly idle_ms: number
  close(): void
}

/**
 * Opens a connection. Calls `onIdle` when it can carry another request and `onClosed` when it never can. An idle
 * connection does not keep the process alive.
 */
export function openConnection(
  address: ServerAddress,
  onIdle: (connection: Connection) => void,
  onClosed: (connection: Connection) => void,
): Connection {
  const socket = connect(address)
  const secure = 'secure' in address && address.secure
  let connected = false
  let paused = false
  let closed = false
  /** Whether an earlier request was answered on this connection. */
  let reused = false
  let keepAlive = false
  let sent_at = 0
  let hasReceived = false
  let signal: AbortSignal | undefined
  let pending: { resolve(response: HttpResponse): void; reject(error: Error): void } | undefined
  let response: HttpResponse | undefined

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
    destroy: () => end(new Error('aborted')),
  }
  const abort = () => end(new Error('aborted'))

  const parser = createResponseParser({
    head(head) {
      keepAlive = head.keepAlive
      const hint = /\btimeout=(\d+)/.exec(head.headers['keep-alive'] ?? '')?.[1]
      connection.idle_ms = hint === undefined ? Number.POSITIVE_INFINITY : Number(hint) * 1000 - idleMargin_ms
      response = new HttpResponse(head.status, head.headers, source)
      pending?.resolve(response)
      pending = undefined
    },
    data: (bytes) => response?.push(bytes),
    end(hasExtraBytes) {
      const completed = response
      response = undefined
      forgetSignal()
      // A server that responds before it has read the whole request may still be reading it.
      if (closed || !keepAlive || hasExtraBytes || socket.writableLength > 0) end(new Error('closed'))
      else {
        reused = true
        source.resume()
        socket.unref()
        onIdle(connection)
      }
      completed?.complete()
    },
  })

  function forgetSignal(): void {
    signal?.removeEventListener('abort', abort)
    signal = undefined
  }

  function failure(error: NodeJS.ErrnoException): NoResponse {
    const wasReset = error.code === 'ECONNRESET' || error.code === 'EPIPE'
    const early = performance.now() - sent_at < staleWindow_ms && !hasReceived
    if (reused && wasReset && early && !signal?.aborted) return new StaleConnection(error.message, false)
    return new NoResponse(error.message, connected && (error.code !== 'EPIPE' || reused))
  }

  function end(error: Error): void {
    if (closed) return
    closed = true
    clearTimeout(timer)
    socket.destroy()
    onClosed(connection)
    pending?.reject(failure(error))
    pending = undefined
    forgetSignal()
    // In the next tick: whoever aborts first handles the abort itself, which is not a broken connection.
    if (response) process.nextTick((broken: HttpResponse) => broken.fail(error), response)
    response = undefined
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
      hasReceived = true
      try {
        parser.feed(bytes)
      } catch (error) {
        end(error as Error)
      }
    })
    .on('end', () => {
      parser.endOfInput()
      hangUp()
    })
    .on('error', end)
    .on('close', hangUp)

  const connection = {
    idle_ms: Number.POSITIVE_INFINITY,
    send(text: string, abortSignal: AbortSignal) {
      return new Promise<HttpResponse>((resolve, reject) => {
        pending = { resolve, reject }
        signal = abortSignal
        sent_at = performance.now()
        hasReceived = false
        signal.addEventListener('abort', abort)
        if (signal.aborted) return abort()
        parser.expectResponse()
        if (reused) socket.ref()
        socket.write(text)
      })
    },
    close: () => end(new Error('closed')),
  }
  return connection
}

function connect(address: ServerAddress): net.Socket {
  const options = { noDelay: true, keepAlive: true, keepAliveInitialDelay: 1000 }
  if ('socketPath' in address) return net.connect({ path: address.socketPath })
  const { hostname: host, port, secure } = address
  if (!secure) return net.connect({ host, port, ...options })
  // SNI allows host names only, no IP addresses.
  return tls.connect({ host, port, servername: net.isIP(host) ? '' : host, ...options } as tls.ConnectionOptions)
}
