// One delivery attempt: a POST over a checked connection, and its outcome.
import type { IncomingMessage } from 'node:http'
import type { AddressRules, Resolve } from '../../platform/outbound/addresses.ts'
import { BlockedAddress, connect, UnresolvedName } from '../../platform/outbound/connect.ts'
import { postOver } from '../../platform/outbound/post.ts'
import { BadTarget, readTarget } from '../../platform/outbound/target.ts'

type SendError = 'blocked_address' | 'dns_failed' | 'tls_failed' | 'connection_failed' | 'timeout' | 'http_error'

export interface Outcome {
  duration_ms: number
  response_status: number | null
  /** The first 1024 bytes of the response. */
  response_body: string | null
  /** Null for a 2xx response. */
  error: { code: SendError; message: string } | null
}

/** Posts a body. Failures of the receiver are an outcome, not an exception; throws the signal's reason on abort. */
export type Send = (url: string, headers: Record<string, string>, body: string, signal: AbortSignal) => Promise<Outcome>

const responseBytesMax = 1024
/** How long the start of the body is read: the status decides, and a receiver that drips must not hold a slot. */
const body_ms = 100

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
    const deadline = AbortSignal.timeout(timeout_ms)
    const ended = AbortSignal.any([signal, deadline])
    const outcome = (answer: Pick<Outcome, 'response_status' | 'response_body' | 'error'>): Outcome => ({
      duration_ms: Math.round(performance.now() - began),
      ...answer,
    })
    try {
      const target = readTarget(text, rules)
      const socket = await connect(target, rules, resolve, ended)
      try {
        const response = await postOver(socket, target.url, headers, body, ended)
        const response_status = response.statusCode!
        const answered = outcome({ response_status, response_body: null, error: null })
        // If the body is late or breaks off, what was received is kept.
        const response_body = await readStart(response)
        const ok = response_status >= 200 && response_status < 300
        return {
          ...answered,
          response_body,
          error: ok ? null : { code: 'http_error', message: `answered ${response_status}` },
        }
      } finally {
        socket.destroy()
      }
    } catch (error) {
      signal.throwIfAborted()
      const problem = deadline.aborted
        ? { code: 'timeout' as const, message: `no answer within ${timeout_ms / 1000} s` }
        : errorOf(error as Error)
      return outcome({ response_status: null, response_body: null, error: problem })
    }
  }
}

/** The first bytes of a response that come within `body_ms`, as text. */
async function readStart(response: IncomingMessage): Promise<string> {
  const pieces: Buffer[] = []
  let bytes = 0
  const late = setTimeout(() => response.destroy(), body_ms)
  try {
    for await (const piece of response) {
      pieces.push(piece as Buffer)
      bytes += (piece as Buffer).length
      if (bytes >= responseBytesMax) break
    }
  } catch {
    // The response broke off: keep what was received.
  } finally {
    clearTimeout(late)
  }
  // Database text must not contain NUL.
  return new TextDecoder().decode(Buffer.concat(pieces).subarray(0, responseBytesMax)).replaceAll('\0', '\ufffd')
}

function errorOf(error: NodeJS.ErrnoException): { code: SendError; message: string } {
  if (error instanceof BlockedAddress || error instanceof BadTarget)
    return { code: 'blocked_address', message: error.message }
  if (error instanceof UnresolvedName) return { code: 'dns_failed', message: error.message }
  if (/^(ERR_TLS|ERR_SSL|CERT_|DEPTH_|SELF_SIGNED|UNABLE_TO|EPROTO)/.test(error.code ?? ''))
    return { code: 'tls_failed', message: error.message }
  const message =
    error.name === 'TimeoutError' || error.name === 'AbortError'
      ? 'no connection within 5 s'
      : error.message || error.code || 'the connection failed'
  return { code: 'connection_failed', message }
}
