// Posts JSON to an address that a client chose, and reads an answer of bounded size.
import http, { type IncomingMessage } from 'node:http'
import type { Socket } from 'node:net'
import type { AddressRules, Resolve } from './addresses.ts'
import { BlockedAddress, connect, UnresolvedName } from './connect.ts'
import { BadTarget, readTarget } from './target.ts'

/** Why there is no answer; the message continues "the endpoint did not answer: …". */
export class PostError extends Error {
  /** Whether another try may succeed. */
  readonly passing: boolean
  constructor(message: string, passing: boolean) {
    super(message)
    this.passing = passing
  }
}

export interface PostOptions {
  rules: AddressRules
  resolve: Resolve
  /** From the look-up of the name to the last byte. */
  timeout_ms: number
  bytes_max: number
}

export interface PostAnswer {
  status: number
  headers: IncomingMessage['headers']
  body: Buffer
}

/** Throws PostError, or the signal's reason. Redirects are answers like others: they are not followed. */
export async function post(
  address: string,
  { headers, body }: { headers: Record<string, string>; body: string },
  { rules, resolve, timeout_ms, bytes_max }: PostOptions,
  signal: AbortSignal,
): Promise<PostAnswer> {
  const deadline = AbortSignal.timeout(timeout_ms)
  const ended = AbortSignal.any([signal, deadline])
  try {
    const target = readTarget(address, rules)
    const socket = await connect(target, rules, resolve, ended)
    try {
      const response = await postOver(socket, target.url, headers, body, ended)
      return { status: response.statusCode!, headers: response.headers, body: await bodyOf(response, bytes_max) }
    } finally {
      socket.destroy()
    }
  } catch (error) {
    signal.throwIfAborted()
    if (deadline.aborted) throw new PostError(`no answer within ${timeout_ms / 1000} s`, true)
    throw postErrorOf(error as NodeJS.ErrnoException)
  }
}

/** Sends a request over a checked connection; resolves with the start of the response. */
export function postOver(
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
      // No agent: it could use a proxy or a pooled connection.
      createConnection: () => socket,
      signal,
    })
    request.on('response', resolve).on('error', reject)
    request.on('upgrade', () => reject(new Error('it answered with another protocol than HTTP/1.1')))
    request.on('close', () => reject(new Error('the connection was closed before an answer came')))
    request.end(body)
  })
}

async function bodyOf(response: IncomingMessage, bytes_max: number): Promise<Buffer> {
  const pieces: Buffer[] = []
  let bytes = 0
  for await (const piece of response as AsyncIterable<Buffer>) {
    bytes += piece.length
    if (bytes > bytes_max) throw new PostError(`its answer has more than ${bytes_max} bytes`, false)
    pieces.push(piece)
  }
  return Buffer.concat(pieces)
}

function postErrorOf(error: NodeJS.ErrnoException): PostError {
  if (error instanceof PostError) return error
  if (error instanceof BlockedAddress || error instanceof BadTarget) return new PostError(error.message, false)
  if (error instanceof UnresolvedName) return new PostError(error.message, true)
  if (error.name === 'TimeoutError' || error.name === 'AbortError')
    return new PostError('it accepted no connection within 5 s', true)
  return new PostError(error.message || error.code || 'the connection failed', true)
}
