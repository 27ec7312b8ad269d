// One request of the client: headers, timeouts, retries and errors.
import { notTunery, TuneryConnectionError, TuneryError } from './errors.ts'
import type { ErrorBody } from './generated/types.ts'
import type { RequestOptions } from './types.ts'

export interface ClientOptions {
  /**
   * The address of the service with its version, such as `https://tunery.example.com/v1`. In a browser it may be a
   * path. Default: `http://127.0.0.1:8000/v1`.
   */
  baseUrl?: string | undefined
  /** An API key. In the dashboard the session's cookie takes its place. */
  apiKey?: string | undefined
  /** The token that proves a session's requests to be the page's own; see `session.get`. */
  csrfToken?: (() => string | undefined) | undefined
  /** Default 2. A retry waits as `Retry-After` says, else longer each time. */
  maxRetries?: number | undefined
  /** Milliseconds until a response must have begun. Default: 10 minutes. */
  timeout_ms?: number | undefined
  /** Sent with every request. */
  headers?: Record<string, string> | undefined
  fetch?: typeof globalThis.fetch | undefined
}

export interface OutgoingRequest {
  method: string
  /** Relative to the base address. */
  path: string
  query?: Record<string, unknown>
  /** JSON, or a form. */
  body?: unknown
}

const defaultTimeout_ms = 600_000
/** Longer waits are left to the caller, as the daily limit's may be. */
const longestWait_ms = 60_000
const retriedStatuses = new Set([408, 409, 429, 500, 502, 503, 504])

export type Send = (request: OutgoingRequest, options?: RequestOptions) => Promise<Response>

/** An id by chance. Browsers have `crypto.randomUUID` on https and localhost alone. */
export const randomId = (): string =>
  Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, '0')).join('')

/** Sends requests. A response is a success; everything else is thrown as an error that says what to do. */
export function createSend(client: ClientOptions): Send {
  const base = (client.baseUrl ?? 'http://127.0.0.1:8000/v1').replace(/(?<!\/)\/+$/, '')

  async function attempt(request: OutgoingRequest, options: RequestOptions, key: string): Promise<Response> {
    const { method, path, query, body } = request
    const timeout_ms = options.timeout_ms ?? client.timeout_ms ?? defaultTimeout_ms
    const timeout = new AbortController()
    const timer = setTimeout(() => timeout.abort(), timeout_ms)
    const headers = new Headers(client.headers)
    if (client.apiKey) headers.set('authorization', `Bearer ${client.apiKey}`)
    const csrf = method === 'GET' ? undefined : client.csrfToken?.()
    if (csrf) headers.set('x-csrf-token', csrf)
    if (method === 'POST') headers.set('idempotency-key', key)
    const isForm = body instanceof FormData
    if (body !== undefined && !isForm) headers.set('content-type', 'application/json')
    for (const [name, value] of Object.entries(options.headers ?? {})) headers.set(name, value)
    try {
      return await (client.fetch ?? globalThis.fetch)(`${base}${path}${searchOf(query)}`, {
        method,
        headers,
        signal: options.signal ? AbortSignal.any([options.signal, timeout.signal]) : timeout.signal,
        ...(body !== undefined && { body: isForm ? body : JSON.stringify(body) }),
      })
    } catch (error) {
      if (options.signal?.aborted) throw options.signal.reason
      if (timeout.signal.aborted)
        throw new TuneryConnectionError(`${method} ${path} had no answer within ${timeout_ms / 1000} s.`)
      const cause = (error as { cause?: Error }).cause?.message || (error as Error).message
      throw new TuneryConnectionError(`${base} cannot be reached: ${cause}.`, { cause: error })
    } finally {
      clearTimeout(timer)
    }
  }

  return async function send(request, options = {}) {
    const retries = options.maxRetries ?? client.maxRetries ?? 2
    const key = options.idempotencyKey ?? randomId()
    for (let tried = 0; ; tried++) {
      const last = tried >= retries
      let wait_ms: number | undefined
      try {
        const response = await attempt(request, options, key)
        if (response.ok) return response
        wait_ms = last ? undefined : retryAfter(response, tried)
        if (wait_ms === undefined) throw await errorOf(response)
        await response.body?.cancel()
      } catch (error) {
        if (last || !(error instanceof TuneryConnectionError)) throw error
        wait_ms = backoff(tried)
      }
      await pause(wait_ms, options.signal)
    }
  }
}

/** Milliseconds to wait before a retry; undefined where a retry would not help or would wait too long. */
function retryAfter({ status, headers }: Response, tried: number): number | undefined {
  if (!retriedStatuses.has(status) || headers.get('x-should-retry') === 'false') return undefined
  const given = headers.get('retry-after')
  if (given === null) return backoff(tried)
  const seconds = /^\d+$/.test(given) ? Number(given) : (Date.parse(given) - Date.now()) / 1000
  const wait_ms = Math.max(0, Number.isNaN(seconds) ? backoff(tried) : seconds * 1000)
  return wait_ms > longestWait_ms ? undefined : wait_ms
}

/** Half a second, doubled with each try, up to 8 s, and up to a quarter shorter. */
export const backoff = (tried: number) => Math.min(8000, 500 * 2 ** tried) * (1 - Math.random() / 4)

/** Waits, or throws the signal's reason. */
export function pause(wait_ms: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason)
    const stop = () => {
      clearTimeout(timer)
      reject(signal!.reason)
    }
    const timer = setTimeout(() => {
      signal?.removeEventListener('abort', stop)
      resolve()
    }, wait_ms)
    signal?.addEventListener('abort', stop, { once: true })
  })
}

async function errorOf(response: Response): Promise<TuneryError> {
  const text = await response.text().catch(() => '')
  try {
    const { error } = JSON.parse(text) as ErrorBody
    if (typeof error?.message === 'string') return new TuneryError(response.status, response.headers, error)
  } catch {}
  return notTunery(response)
}

/** A query with the fields that are set; lists are joined by commas, objects written as `name[key]=value`. */
function searchOf(query: Record<string, unknown> | undefined): string {
  const search = new URLSearchParams()
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value === undefined || value === null) continue
    if (Array.isArray(value)) search.set(name, value.join(','))
    else if (typeof value === 'object')
      for (const [key, each] of Object.entries(value)) search.set(`${name}[${key}]`, String(each))
    else search.set(name, String(value))
  }
  const text = search.toString()
  return text && `?${text}`
}
