// Reads a file of bounded size from an address that a client chose.
import http, { type IncomingMessage } from 'node:http'
import type { Socket } from 'node:net'
import type { AddressRules, Resolve } from './addresses.ts'
import { BlockedAddress, connect, UnresolvedName } from './connect.ts'
import { BadTarget, readTarget, type Target } from './target.ts'

/** Why an address gave no file; the message continues "could not be fetched: …". */
export class GetError extends Error {
  /** Whether its host gave no answer in time, or no connection: others of its addresses hardly will. */
  readonly silent: boolean
  constructor(message: string, silent = false) {
    super(message)
    this.silent = silent
  }
}

interface GetOptions {
  rules: AddressRules
  resolve: Resolve
  /** From the look-up of the name to the last byte, redirects included. */
  timeout_ms: number
  bytes_max: number
  headers: Record<string, string>
}

const redirectsMax = 3
const redirectStatuses = [301, 302, 303, 307, 308]

/**
 * The bytes behind an address. Each redirect is checked like the address itself. Throws GetError, or the abort reason.
 */
export async function get(address: string, options: GetOptions, signal: AbortSignal): Promise<Buffer> {
  const deadline = AbortSignal.timeout(options.timeout_ms)
  const ended = AbortSignal.any([signal, deadline])
  try {
    let target = readTarget(address, options.rules)
    for (let redirects = 0; ; redirects++) {
      const socket = await connect(target, options.rules, options.resolve, ended)
      try {
        const response = await request(socket, target.url, options.headers, ended)
        if (!redirectStatuses.includes(response.statusCode!)) return await bodyOf(response, options.bytes_max)
        if (redirects === redirectsMax) throw new GetError(`it redirects more than ${redirectsMax} times`)
        target = redirectOf(response, target, options.rules)
      } finally {
        socket.destroy()
      }
    }
  } catch (error) {
    signal.throwIfAborted()
    if (deadline.aborted) throw new GetError(`it was not read within ${options.timeout_ms / 1000} s`, true)
    throw getErrorOf(error as NodeJS.ErrnoException)
  }
}

function request(
  socket: Socket,
  url: URL,
  headers: Record<string, string>,
  signal: AbortSignal,
): Promise<IncomingMessage> {
  return new Promise((resolve, reject) => {
    const sent = http.request({
      method: 'GET',
      path: url.pathname + url.search,
      headers: { host: url.host, ...headers, 'accept-encoding': 'identity', connection: 'close' },
      setHost: false,
      // No agent: it could use a proxy or a pooled connection.
      createConnection: () => socket,
      signal,
    })
    sent.on('response', resolve).on('error', reject)
    sent.on('upgrade', () => reject(new GetError('it answered with another protocol than HTTP/1.1')))
    sent.on('close', () => reject(new GetError('the connection was closed before an answer came')))
    sent.end()
  })
}

function redirectOf({ headers }: IncomingMessage, { url }: Target, rules: AddressRules): Target {
  const to = headers.location === undefined ? null : URL.parse(headers.location, url)
  if (!to) throw new GetError('it redirects without a valid address')
  if (url.protocol === 'https:' && to.protocol !== 'https:') throw new GetError('it redirects from https to http')
  return readTarget(to.href, rules)
}

async function bodyOf(response: IncomingMessage, bytes_max: number): Promise<Buffer> {
  const { statusCode, headers } = response
  const tooLarge = () => new GetError(`it has more than ${bytes_max / 1e6} MB, the most`)
  if (statusCode !== 200) throw new GetError(`it answered ${statusCode}`)
  if (!['identity', undefined].includes(headers['content-encoding']))
    throw new GetError('it is compressed, which was not asked for')
  if (Number(headers['content-length'] ?? 0) > bytes_max) throw tooLarge()
  const pieces: Buffer[] = []
  let bytes = 0
  for await (const piece of response as AsyncIterable<Buffer>) {
    bytes += piece.length
    if (bytes > bytes_max) throw tooLarge()
    pieces.push(piece)
  }
  return Buffer.concat(pieces)
}

/** Codes and messages of the network name addresses that clients know, or that the rules allow them to reach. */
function getErrorOf(error: NodeJS.ErrnoException): GetError {
  if (error instanceof GetError) return error
  if (error instanceof BadTarget || error instanceof BlockedAddress) return new GetError(error.message)
  if (error instanceof UnresolvedName) return new GetError(error.message, true)
  if (error.name === 'TimeoutError' || error.name === 'AbortError')
    return new GetError('it accepted no connection within 5 s', true)
  return new GetError(error.message || error.code || 'the connection failed', true)
}
