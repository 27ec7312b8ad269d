// One try: a POST over a guarded connection, and what came of it.
import http, { type IncomingMessage } from 'node:http'
import type { Socket } from 'node:net'
import type { AddressRules, Resolve } from './addresses.ts'
import { Blocked, connect, Unresolved } from './connect.ts'
import { BadTarget, readTarget } from './target.ts'

export type SendError = 'blocked_address' | 'dns_failed' | 'tls_failed' | 'connection_failed' | 'timeout' | 'http_error'

export interface Outcome {
  duration_ms: number
  response_status: number | null
  /** The first kB of the answer. */
  response_body: string | null
  /** Null where the answer was a 2xx. */
  error: { code: SendError; message: string } | null
}

/** Posts a body. Never throws for what the other side does; throws the signal's reason where that aborts. */
export type Send = (url: string, headers: Record<string, string>, body: string, signal: AbortSignal) => Promise<Outcome>

const answerMax = 1024

export function createSend({
  rules,
  resolve,
  timeout_ms,
}: {
  rules: AddressRules
  resolve: Resolve
  timeout_ms: number
}): Send {
  return async (text, headers, body, signal) => {
    const began = performance.now()
    const late = AbortSignal.timeout(timeout_ms)
    const ending = AbortSignal.any([signal, late])
    const outcome = (answer: Pick<Outcome, 'response_status' | 'response_body' | 'error'>): Outcome => ({
      duration_ms: Math.round(performance.now() - began),
      ...answer,
    })
    try {
      const target = readTarget(text, rules)
      const socket = await connect(target, rules, resolve, ending)
      try {
        const response = await post(socket, target.url, headers, body, ending)
        const response_status = response.statusCode!
        // The status is the answer; where the rest comes late or breaks, what came of it is kept.
        const response_body = await beginning(response)
        const good = response_status >= 200 && response_status < 300
        return outcome({
          response_status,
          response_body,
          error: good ? null : { code: 'http_error', message: `answered ${response_status}` },
        })
      } finally {
        socket.destroy()
      }
    } catch (error) {
      signal.throwIfAborted()
      const found = late.aborted
        ? { code: 'timeout' as const, message: `no answer within ${timeout_ms / 1000} s` }
        : errorOf(error as Error)
      return outcome({ response_status: null, response_body: null, error: found })
    }
  }
}

function post(
  socket: Socket,
  url: URL,
  headers: Record<string, string>,
  body: string,
  signal: AbortSignal,
): Promise<IncomingMessage> {
  return new Promise((resolve, reject) => {
    const request = http.request({
      method: 'POST',
      path: url.pathname + url.search,
      headers: { host: url.host, ...headers, 'content-length': Buffer.byteLength(body), connection: 'close' },
      setHost: false,
      // No agent: it might have a proxy, or another connection at hand.
      createConnection: () => socket,
      signal,
    })
    request.on('response', resolve).on('error', reject)
    request.on('upgrade', () => reject(new Error('it answered with another protocol than HTTP/1.1')))
    request.on('close', () => reject(new Error('the connection was closed before an answer came')))
    request.end(body)
  })
}

/** The first bytes of an answer, as text. */
async function beginning(response: IncomingMessage): Promise<string> {
  const pieces: Buffer[] = []
  let bytes = 0
  try {
    for await (const piece of response) {
      pieces.push(piece as Buffer)
      bytes += (piece as Buffer).length
      if (bytes >= answerMax) break
    }
  } catch {
    // It broke off.
  }
  // A database's text may hold no NUL.
  return new TextDecoder().decode(Buffer.concat(pieces).subarray(0, answerMax)).replaceAll('\0', '\ufffd')
}

function errorOf(error: NodeJS.ErrnoException): { code: SendError; message: string } {
  if (error instanceof Blocked || error instanceof BadTarget) return { code: 'blocked_address', message: error.message }
  if (error instanceof Unresolved) return { code: 'dns_failed', message: error.message }
  if (/^(ERR_TLS|ERR_SSL|CERT_|DEPTH_|SELF_SIGNED|UNABLE_TO|EPROTO)/.test(error.code ?? ''))
    return { code: 'tls_failed', message: error.message }
  const message =
    error.name === 'TimeoutError' || error.name === 'AbortError'
      ? 'no connection within 5 s'
      : error.message || error.code || 'the connection failed'
  return { code: 'connection_failed', message }
}
