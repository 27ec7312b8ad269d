// Keep-alive connection pool for one server, on undici: the engine behind a unix socket, or an upstream.
import net from 'node:net'
import { Client, type Dispatcher, Pool } from 'undici'
import { type Headers, HttpResponse } from './response.ts'

/** Where a server listens. An IPv6 `hostname` has no brackets. */
type ServerAddress = { socketPath: string } | { hostname: string; port: number; secure: boolean }

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

export interface HttpRequest {
  method: 'GET' | 'POST'
  path: string
  headers?: Record<string, string>
  /** JSON text. */
  payload?: string
}

const connectTimeout_ms_default = 5000
/** A reset within this time of sending means that the server had closed the idle connection before the request. */
const staleWindow_ms = 50
/** Idle connections close this long before the server's own timeout, so that no request crosses the server's close. */
const idleMargin_ms = 1000
/** Longest head of a response. */
const maxHead_bytes = 64 * 1024
/** The longest delay of a timer. */
const forever_ms = 2 ** 31 - 1

export interface ConnectionPool {
  /**
   * Sends a request on an idle connection, or on a new one. Resolves when the head of the response has arrived. Throws
   * NoResponse.
   */
  send(request: HttpRequest, signal: AbortSignal, newConnection: boolean): Promise<HttpResponse>
  /** Closes idle connections. */
  close(): void
}

/** `idle_ms`: how long an idle connection stays open. A shorter Keep-Alive timeout from the server takes precedence. */
export function createConnectionPool(
  address: ServerAddress,
  idle_ms: number,
  connectTimeout_ms = connectTimeout_ms_default,
): ConnectionPool {
  const { origin, connect } = target(address)
  const options: Client.Options = {
    connect: { timeout: connectTimeout_ms, ...connect },
    keepAliveTimeout: Math.min(idle_ms, forever_ms),
    keepAliveMaxTimeout: forever_ms,
    keepAliveTimeoutThreshold: idleMargin_ms,
    // A long prompt takes as long as it takes; the caller's signal ends it.
    headersTimeout: 0,
    bodyTimeout: 0,
    maxHeaderSize: maxHead_bytes,
    pipelining: 1,
  }
  let pool = new Pool(origin, options)

  async function sendOnce(request: HttpRequest, signal: AbortSignal): Promise<HttpResponse> {
    const client = new Client(origin, options)
    const destroy = () => void client.destroy().catch(() => {})
    try {
      const response = await dispatch(client, request, signal)
      if (response.closed) destroy()
      else response.once('close', destroy)
      return response
    } catch (error) {
      destroy()
      throw error
    }
  }

  return {
    send: (request, signal, newConnection) =>
      newConnection ? sendOnce(request, signal) : dispatch(pool, request, signal),
    close() {
      void pool.close().catch(() => {})
      pool = new Pool(origin, options)
    },
  }
}

function target(address: ServerAddress): { origin: string; connect: { socketPath?: string; servername?: string } } {
  if ('socketPath' in address) return { origin: 'http://localhost', connect: { socketPath: address.socketPath } }
  const { hostname, port, secure } = address
  const host = hostname.includes(':') ? `[${hostname}]` : hostname
  // SNI allows host names only, no IP addresses.
  return {
    origin: `${secure ? 'https' : 'http'}://${host}:${port}`,
    connect: { servername: secure && !net.isIP(hostname) ? hostname : '' },
  }
}

/** Sends the request and resolves when the head of its response has arrived. The body is paused until `resume()`. */
function dispatch(dispatcher: Dispatcher, request: HttpRequest, signal: AbortSignal): Promise<HttpResponse> {
  return new Promise((resolve, reject) => {
    let controller: Dispatcher.DispatchController | undefined
    let response: HttpResponse | undefined
    let sent_at = 0
    const abort = () => {
      if (controller) controller.abort(new Error('aborted'))
      else reject(new NoResponse('aborted', false))
    }
    if (signal.aborted) return abort()
    signal.addEventListener('abort', abort)
    const { method, path, payload } = request
    const headers = payload === undefined ? request.headers : { 'content-type': 'application/json', ...request.headers }

    /** What a request without a response failed with. */
    function failure(error: Error & { code?: string; socket?: { bytesRead?: number } }): NoResponse {
      const wasReset = ['UND_ERR_SOCKET', 'ECONNRESET', 'EPIPE'].includes(error.code ?? '')
      const reused = (error.socket?.bytesRead ?? 0) > 0
      const early = performance.now() - sent_at < staleWindow_ms
      if (controller && wasReset && reused && early && !signal.aborted) return new StaleConnection(error.message, false)
      return new NoResponse(error.message, controller !== undefined)
    }

    const handler: Dispatcher.DispatchHandler = {
      onRequestStart(handle) {
        controller = handle
        sent_at = performance.now()
        if (signal.aborted) abort()
      },
      onResponseStart(controller, status, head) {
        // An interim response such as 103 Early Hints: the final one follows.
        if (status < 200) return
        const coding = head['transfer-encoding']
        if (coding !== undefined && String(coding).toLowerCase() !== 'chunked') {
          controller.abort(new Error('its response has an unknown transfer coding'))
          return
        }
        response = new HttpResponse(status, joined(head), {
          pause: () => controller.pause(),
          resume: () => controller.resume(),
          destroy: () => controller.abort(new Error('aborted')),
        })
        resolve(response)
      },
      onResponseData(_, chunk) {
        response?.push(chunk)
      },
      onResponseEnd() {
        signal.removeEventListener('abort', abort)
        response?.complete()
      },
      onResponseError(_, error) {
        signal.removeEventListener('abort', abort)
        // In the next tick: the first to abort handles the abort itself, which is not a broken connection.
        if (response) process.nextTick((broken: HttpResponse) => broken.fail(error), response)
        else reject(failure(error))
      },
    }
    dispatcher.dispatch({ method, path, headers: headers ?? null, body: payload ?? null }, handler)
  })
}

function joined(head: Record<string, string | string[] | undefined>): Headers {
  const headers: Record<string, string | undefined> = Object.create(null)
  for (const name in head) {
    const value = head[name]
    headers[name] = Array.isArray(value) ? value.join(', ') : value
  }
  return headers
}
