// The server over streamable HTTP: a session a client, each with its client's own key.
import { createHash, randomUUID, timingSafeEqual } from 'node:crypto'
import http, { type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js'
import { isTuneryError, Tunery, TuneryConnectionError } from '../sdk/index.ts'
import { createMcpServer } from './server.ts'

export interface HttpSettings {
  /** The service, with its version: https://tunery.example.com/v1. */
  url: string
  version: string
  /** Default: 127.0.0.1. */
  host?: string
  /** 0 takes a free one. */
  port: number
  /** Names, without ports, by which clients reach it, such as that of a proxy in front. Default: those of this machine. */
  allowedHosts?: string[]
  log: (line: string) => void
}

export interface HttpServer {
  /** Where clients connect to. */
  url: string
  close(): Promise<void>
}

const bodyMax_bytes = 2 * 1024 * 1024
const sessionsMax = 200
const sessionsOfKeyMax = 20
const idle_ms = 30 * 60_000
const sweep_ms = 60_000
const receive_ms = 30_000
const connectionsMax = 1000
/** Below the service's own limit, so that guesses here do not block this server there. */
const wrongKeysPerMinute = 20

interface Session {
  key: Buffer
  transport: StreamableHTTPServerTransport
  close: () => Promise<void>
  /** Unix milliseconds. */
  used_at: number
  /** Responses that are under way. */
  open: number
}

/** A refusal: the status, what the client is told, and headers. */
class Refusal extends Error {
  readonly status: number
  readonly headers: Record<string, string>

  constructor(status: number, message: string, headers: Record<string, string> = {}) {
    super(message)
    this.status = status
    this.headers = headers
  }
}

/** Listens. Throws the error of the system where it cannot. */
export async function serveHttp(settings: HttpSettings): Promise<HttpServer> {
  const { url, version, host = '127.0.0.1', port, log } = settings
  const allowedHosts = new Set(settings.allowedHosts ?? [])
  for (const each of ['127.0.0.1', 'localhost', '[::1]']) allowedHosts.add(each)
  const sessions = new Map<string, Session>()
  let wrongKeys = { count: 0, since: 0 }

  function checkSource({ headers }: IncomingMessage): void {
    // A page of a browser could reach this machine under a name of its own (DNS rebinding), or from its own origin.
    if (!allowedHosts.has(hostnameOf(`http://${headers.host}`) ?? ''))
      throw new Refusal(403, 'This Host is not served here.')
    const { origin } = headers
    if (origin !== undefined && !allowedHosts.has(hostnameOf(origin) ?? ''))
      throw new Refusal(403, 'Pages of this Origin may not use this server.')
  }

  async function checkKey(key: string, tunery: Tunery): Promise<void> {
    const now = Date.now()
    if (now - wrongKeys.since > 60_000) wrongKeys = { count: 0, since: now }
    if (wrongKeys.count >= wrongKeysPerMinute) throw new Refusal(429, 'Too many wrong keys.', { 'retry-after': '60' })
    try {
      await tunery.user.profile({ maxRetries: 0 })
    } catch (error) {
      if (isTuneryError(error, 'insufficient_permissions')) return
      if (isTuneryError(error, 'invalid_api_key')) {
        wrongKeys.count++
        throw unauthorized('The key is not one of the service.', true)
      }
      if (error instanceof TuneryConnectionError) throw new Refusal(502, 'The service cannot be reached.')
      if (isTuneryError(error)) throw new Refusal(error.status, error.message.replaceAll(key, 'tny_…'))
      throw error
    }
  }

  async function openSession(key: string, hash: Buffer, address: string | undefined): Promise<Session> {
    const ofKey = [...sessions.values()].filter((each) => each.key.equals(hash))
    if (ofKey.length >= sessionsOfKeyMax)
      throw new Refusal(
        429,
        `This key has ${sessionsOfKeyMax} sessions already. End one, or wait until one has been idle.`,
      )
    if (sessions.size >= sessionsMax)
      throw new Refusal(503, 'Too many sessions. Try again later.', { 'retry-after': '60' })
    const tunery = new Tunery({
      baseUrl: url,
      apiKey: key,
      headers: { 'user-agent': `tunery-mcp/${version}`, ...(address && { 'x-forwarded-for': address }) },
    })
    if (ofKey.length === 0) await checkKey(key, tunery)
    const server = createMcpServer({ tunery, key, version, log })
    const transport = new StreamableHTTPServerTransport({
      sessionIdGenerator: randomUUID,
      maxRequestBodySize: bodyMax_bytes,
      onsessioninitialized: (id) => {
        sessions.set(id, session)
      },
      onsessionclosed: (id) => {
        sessions.delete(id)
      },
    })
    const close = async () => {
      if (transport.sessionId) sessions.delete(transport.sessionId)
      await server.close()
    }
    const session: Session = { key: hash, transport, close, used_at: Date.now(), open: 0 }
    server.server.onerror = (error) => log(`protocol: ${error.message}`)
    await server.connect(transport)
    return session
  }

  async function handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    checkSource(request)
    if (new URL(request.url ?? '/', 'http://mcp').pathname !== '/mcp') throw new Refusal(404, 'The server is at /mcp.')
    const key = bearerOf(request)
    const hash = createHash('sha256').update(key).digest()
    const id = request.headers['mcp-session-id']
    const known = typeof id === 'string' ? sessions.get(id) : undefined
    // A session of another key is not found either.
    if (id !== undefined && !(known && timingSafeEqual(known.key, hash)))
      throw new Refusal(404, 'There is no such session. Begin a new one.')
    if (!known && request.method !== 'POST') throw new Refusal(400, 'Begin a session with POST and initialize.')
    const session = known ?? (await openSession(key, hash, request.socket.remoteAddress))
    session.open++
    response.once('close', () => {
      session.open--
      session.used_at = Date.now()
    })
    await session.transport.handleRequest(request, response)
    // The first request was not one that begins a session.
    if (!known && session.transport.sessionId === undefined) await session.close()
  }

  const server = http.createServer({ requestTimeout: receive_ms, headersTimeout: receive_ms }, (request, response) => {
    handle(request, response).catch((error: unknown) => {
      const refusal = error instanceof Refusal ? error : new Refusal(500, 'This server failed at that request.')
      if (!(error instanceof Refusal)) log(`request failed: ${(error as Error)?.stack ?? error}`)
      refuse(response, refusal)
    })
  })
  server.maxConnections = connectionsMax
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject)
    server.listen(port, host, resolve)
  })
  const sweep = setInterval(() => {
    for (const session of sessions.values())
      if (session.open === 0 && Date.now() - session.used_at > idle_ms) void session.close()
  }, sweep_ms).unref()
  const { port: taken } = server.address() as AddressInfo
  return {
    url: `http://${host.includes(':') ? `[${host}]` : host}:${taken}/mcp`,
    async close() {
      clearInterval(sweep)
      const closed = new Promise((resolve) => server.close(resolve))
      await Promise.all([...sessions.values()].map((session) => session.close()))
      server.closeAllConnections()
      await closed
    },
  }
}

const hostnameOf = (address: string) => (URL.canParse(address) ? new URL(address).hostname : undefined)

function bearerOf({ headers }: IncomingMessage): string {
  const match = /^Bearer +([\x21-\x7e]{1,200})$/i.exec(headers.authorization ?? '')
  if (!match) throw unauthorized('Send an API key of the service: Authorization: Bearer tny_…', false)
  return match[1]!
}

/** RFC 6750: `invalid_token` only where there was one. */
const unauthorized = (message: string, hadKey: boolean) =>
  new Refusal(401, message, {
    'www-authenticate': `Bearer realm="tunery"${hadKey ? ', error="invalid_token", error_description="unknown key"' : ''}`,
  })

function refuse(response: ServerResponse, { status, message, headers }: Refusal): void {
  if (response.headersSent) {
    response.destroy()
    return
  }
  // Its body may not have been read.
  response.writeHead(status, { 'content-type': 'application/json', connection: 'close', ...headers })
  response.end(JSON.stringify({ jsonrpc: '2.0', error: { code: status === 404 ? -32001 : -32000, message }, id: null }))
}
