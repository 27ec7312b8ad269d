// The server over streamable HTTP: a session a client, each with its client's own key.
import { createHash, randomUUID, timingSafeEqual } from 'node:crypto'
import http, { type IncomingMessage, type ServerResponse } from 'node:http'
import { type AddressInfo, isIP } from 'node:net'
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js'
import { addressesIn, addressShare, Connections } from '../lib/connections.ts'
import { Tunery } from '../sdk/index.ts'
import { createKeyChecks, type KeyChecks } from './key-checks.ts'
import { createKeyWatch, type KeyWatch } from './key-watch.ts'
import { Refusal, refuse, unauthorized } from './refusal.ts'
import { createMcpServer } from './server.ts'
import { makeRoom, type Session } from './sessions.ts'

interface HttpSettings {
  /** The service, with its version: https://tunery.example.com/v1. */
  url: string
  version: string
  /** Default: 127.0.0.1. */
  host?: string | undefined
  /** 0 takes a free one. */
  port: number
  /**
   * Names, without ports, by which clients reach it, such as that of a proxy in front. Default: those of this machine.
   */
  allowedHosts?: string[] | undefined
  /** Addresses and networks (CIDR) of proxies whose X-Forwarded-For says who the client is. Default: none. */
  trustedProxies?: string[] | undefined
  /** Milliseconds for which a wrong key is held against its client's address. Default: 5000. */
  wrongKey_ms?: number
  log: (line: string) => void
}

const bodyMax_bytes = 2 * 1024 * 1024
const idle_ms = 30 * 60_000
const sweep_ms = 60_000
const receive_ms = 30_000
const connectionsMax = 1000

/** Listens. Throws the error of the system where it cannot. */
export async function serveHttp(settings: HttpSettings): Promise<HttpServer> {
  const server = new HttpServer(settings)
  await server.listen()
  return server
}

export class HttpServer {
  /** Where clients connect to. */
  url = ''
  private readonly settings: HttpSettings
  private readonly allowedHosts: ReadonlySet<string>
  private readonly isProxy: (address: string) => boolean
  private readonly keyChecks: KeyChecks
  private readonly keyWatch: KeyWatch
  private readonly sessions = new Map<string, Session>()
  private readonly server: http.Server
  private readonly connections: Connections
  private sweep: NodeJS.Timeout | undefined

  constructor(settings: HttpSettings) {
    this.settings = settings
    this.allowedHosts = new Set(['127.0.0.1', 'localhost', '[::1]', ...(settings.allowedHosts ?? [])])
    this.isProxy = addressesIn(settings.trustedProxies ?? [])
    this.keyChecks = createKeyChecks(settings.wrongKey_ms)
    const ofKey = (hash: string) => [...this.sessions.values()].filter(({ key }) => key.toString('hex') === hash)
    this.keyWatch = createKeyWatch({
      hasSessions: (hash) => ofKey(hash).length > 0,
      end: (hash) => {
        for (const session of ofKey(hash)) void session.close()
      },
    })
    this.server = http.createServer({ requestTimeout: receive_ms, headersTimeout: receive_ms }, (request, response) => {
      this.handle(request, response).catch((error: unknown) => {
        const refusal = error instanceof Refusal ? error : new Refusal(500, 'This server failed at that request.')
        if (!(error instanceof Refusal)) settings.log(`request failed: ${(error as Error)?.stack ?? error}`)
        refuse(response, refusal)
      })
    })
    this.connections = new Connections(this.server, {
      connections_max: connectionsMax,
      address_max: addressShare(connectionsMax),
      isProxy: this.isProxy,
    })
  }

  async listen(): Promise<void> {
    const { host = '127.0.0.1', port } = this.settings
    await new Promise<void>((resolve, reject) => {
      this.server.once('error', reject)
      this.server.listen(port, host, resolve)
    })
    this.sweep = setInterval(() => {
      for (const session of this.sessions.values())
        if (session.open === 0 && Date.now() - session.used_at > idle_ms) void session.close()
    }, sweep_ms).unref()
    const { port: taken } = this.server.address() as AddressInfo
    this.url = `http://${host.includes(':') ? `[${host}]` : host}:${taken}/mcp`
  }

  async close(): Promise<void> {
    clearInterval(this.sweep)
    this.keyWatch.close()
    const closed = new Promise((resolve) => this.server.close(resolve))
    await Promise.all([...this.sessions.values()].map((session) => session.close()))
    this.server.closeAllConnections()
    await closed
  }

  private async handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    this.checkHeaders(request)
    if (new URL(request.url ?? '/', 'http://mcp').pathname !== '/mcp') throw new Refusal(404, 'The server is at /mcp.')
    if (this.connections.refusal(request, () => this.clientOf(request)) !== undefined)
      throw new Refusal(503, 'Too many connections. Try again later.', { 'retry-after': '5' })
    const key = bearerOf(request)
    const hash = createHash('sha256').update(key).digest()
    const id = request.headers['mcp-session-id']
    const opened = typeof id === 'string' ? this.sessions.get(id) : undefined
    // A session of another key is not found either.
    if (id !== undefined && !(opened && timingSafeEqual(opened.key, hash)))
      throw new Refusal(404, 'There is no such session. Begin a new one.')
    if (!opened && request.method !== 'POST') throw new Refusal(400, 'Begin a session with POST and initialize.')
    const isCall = request.method === 'POST'
    if (opened) begin(opened, isCall)
    const session = opened ?? (await this.openSession(key, hash, this.clientOf(request)))
    const end = () => {
      session.open--
      if (isCall) session.calls--
      session.used_at = Date.now()
    }
    // The client may have left while its key was checked.
    if (response.destroyed) end()
    else response.once('close', end)
    try {
      if (!this.connections.claim(request, hash.toString('hex')))
        throw new Refusal(429, 'This key has too many requests in progress.', { 'retry-after': '5' })
      await session.transport.handleRequest(request, response)
    } finally {
      // The first request was not one that begins a session.
      if (!opened && session.transport.sessionId === undefined) await session.close()
    }
  }

  private checkHeaders({ headers }: IncomingMessage): void {
    // A page of a browser could reach this machine under a name of its own (DNS rebinding), or from its own origin.
    if (!this.allowedHosts.has(hostnameOf(`http://${headers.host}`) ?? ''))
      throw new Refusal(403, 'This Host is not served here.')
    if (!['', 'identity'].includes(headers['content-encoding'] ?? ''))
      throw new Refusal(415, 'Bodies are read without Content-Encoding here.')
    const { origin } = headers
    if (origin !== undefined && !this.allowedHosts.has(hostnameOf(origin) ?? ''))
      throw new Refusal(403, 'Pages of this Origin may not use this server.')
  }

  /**
   * The client's address: the last of X-Forwarded-For that no trusted proxy has, if a trusted proxy sent the request.
   */
  private clientOf({ socket, headers }: IncomingMessage): string {
    const peer = socket.remoteAddress ?? ''
    if (!this.isProxy(peer)) return peer
    const forwarded = [headers['x-forwarded-for'] ?? []].flat().join(',').split(',')
    return (
      forwarded.map((address) => address.trim()).findLast((address) => isIP(address) !== 0 && !this.isProxy(address)) ??
      peer
    )
  }

  private async openSession(key: string, hash: Buffer, address: string): Promise<Session> {
    const { url, version, log } = this.settings
    const tunery = new Tunery({
      baseUrl: url,
      apiKey: key,
      headers: { 'user-agent': `tunery-mcp/${version}`, ...(address && { 'x-forwarded-for': address }) },
    })
    const account = await this.keyChecks.accountOf(key, hash.toString('hex'), address, tunery)
    makeRoom(this.sessions, hash, account)
    const id = randomUUID()
    const server = createMcpServer({ tunery, key, version, log })
    const transport = new StreamableHTTPServerTransport({
      sessionIdGenerator: () => id,
      maxRequestBodySize: bodyMax_bytes,
      onsessionclosed: () => {
        this.sessions.delete(id)
      },
    })
    const close = async () => {
      this.sessions.delete(id)
      await server.close()
    }
    const session: Session = { key: hash, account, transport, close, used_at: Date.now(), open: 0, calls: 0 }
    server.server.onerror = (error) => log(`protocol: ${error.message}`)
    // Before anything is awaited: it counts.
    this.sessions.set(id, session)
    this.keyWatch.watch(hash.toString('hex'), tunery)
    begin(session, true)
    await server.connect(transport).catch(async (error) => {
      await close()
      throw error
    })
    return session
  }
}

function begin(session: Session, isCall: boolean): void {
  session.open++
  if (isCall) session.calls++
}

const hostnameOf = (address: string) => (URL.canParse(address) ? new URL(address).hostname : undefined)

function bearerOf({ headers }: IncomingMessage): string {
  const match = /^Bearer +([\x21-\x7e]{1,200})$/i.exec(headers.authorization ?? '')
  if (!match) throw unauthorized('Send an API key of the service: Authorization: Bearer tny_…', false)
  return match[1]!
}
