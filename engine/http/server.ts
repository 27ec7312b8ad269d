// The HTTP surface: which path and method goes where.

import { chmodSync, statSync, unlinkSync } from 'node:fs'
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import { connect } from 'node:net'
import { ApiError } from '../../contract/errors.ts'
import { drain } from '../../lib/http/refusals.ts'
import type { Headway } from '../batching/headway.ts'
import type { Rests } from '../batching/yielding.ts'
import type { LeftUsage } from './aborted-usage.ts'
import { sendError, sendJson } from './io.ts'
import type { Metrics } from './metrics.ts'
import { admit, createPublicServer, newRequestId, type PublicAccess } from './public.ts'
import { chatCompletions } from './routes/chat.ts'
import { completions } from './routes/completions.ts'
import { type EmbeddingServices, embeddings } from './routes/embeddings.ts'
import type { GenerationServices } from './routes/generate.ts'
import { leaveCores, listModels, loadAdapter, loadModel, unloadAdapter, unloadModel } from './routes/models.ts'
import { type EchoServices, type ScoreServices, scoreTokens } from './routes/score.ts'

export type HttpServices = GenerationServices &
  EmbeddingServices &
  ScoreServices &
  EchoServices & { metrics: Metrics; rests: Rests; headway: Headway; isStopping(): boolean }
type Handler = (request: IncomingMessage, response: ServerResponse) => void | Promise<void>

type Routes = Record<string, Record<string, Handler>>

/**
 * Builds the server; listening is the caller's. `access` is null where only the service that started this process can
 * reach it.
 */
export function createHttpServer(services: HttpServices, access: PublicAccess | null): Server {
  const { models, limits, metrics } = services
  const live: Handler = (_, response) => sendJson(response, 200, { status: 'ok' })
  const ready: Handler = (_, response) => {
    if (services.isStopping()) throw new ApiError('shutting_down', 'The engine is stopping.')
    const stalled_ms = services.headway.stalledMs()
    if (stalled_ms > 0)
      throw new ApiError(
        'engine_unavailable',
        `The engine has had work for ${Math.round(stalled_ms / 1000)} s without any headway.`,
      )
    sendJson(response, 200, { status: 'ok' })
  }
  const routes: Routes = {
    '/health': { GET: ready },
    '/health/ready': { GET: ready },
    '/health/live': { GET: live },
    '/metrics': {
      GET: async (_, response) =>
        void response
          .writeHead(200, { 'content-type': 'text/plain; version=0.0.4; charset=utf-8' })
          .end(await metrics.text()),
    },
    '/v1/models': { GET: (_, response) => listModels(models, limits, response, access === null) },
    '/v1/chat/completions': { POST: (request, response) => chatCompletions(services, request, response) },
    '/v1/completions': { POST: (request, response) => completions(services, request, response) },
    '/v1/embeddings': { POST: (request, response) => embeddings(services, request, response) },
  }
  if (access === null) Object.assign(routes, internalRoutes(services))

  const find = (request: IncomingMessage, response: ServerResponse, path: string): Handler => {
    const methods = routes[path]
    if (!methods) throw new ApiError('not_found', `There is no ${path} here.`)
    // Of an answer to HEAD, Node sends the head alone.
    const handler = methods[request.method === 'HEAD' ? 'GET' : (request.method ?? '')]
    if (handler) return handler
    response.setHeader('allow', Object.keys(methods).join(', '))
    throw new ApiError('method_not_allowed', `${path} takes ${Object.keys(methods).join(', ')}, not ${request.method}.`)
  }

  const handle = async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
    const path = routeOf(pathOf(request.url ?? '/'), access !== null)
    response.setHeader('x-request-id', requestId(request))
    response.once('finish', () => metrics.request(routes[path] ? path : 'other', response.statusCode))
    try {
      if (access) admit(access, request, response, path)
      const handler = find(request, response, path)
      if (services.isStopping() && request.method === 'POST')
        throw new ApiError('shutting_down', 'The engine is stopping.')
      await handler(request, response)
    } catch (error) {
      if (!(error instanceof ApiError) && !request.destroyed) services.onFault(error)
      if (access && !request.complete) {
        // What is left of the body makes the connection unfit for another request; its client is to read the answer all
        // the same.
        response.setHeader('connection', 'close')
        await drain(request)
      }
      sendError(response, error)
    }
  }

  const listener = (request: IncomingMessage, response: ServerResponse) => void handle(request, response)
  return access ? createPublicServer(access, listener) : createServer({ keepAliveTimeout: 60_000 }, listener)
}

/** What only the service may ask for: these name files of this machine, and tell of requests of anyone. */
function internalRoutes(services: HttpServices): Routes {
  const { models, left, rests } = services
  return {
    '/v1/load_lora_adapter': { POST: (request, response) => loadAdapter(models, request, response) },
    '/v1/unload_lora_adapter': { POST: (request, response) => unloadAdapter(models, request, response) },
    '/internal/score': { POST: (request, response) => scoreTokens(services, request, response) },
    [leftUsagePath]: { GET: (request, response) => sendLeftUsage(left, request, response) },
    '/internal/load_model': { POST: (request, response) => loadModel(models, request, response) },
    '/internal/leave_cores': { POST: (request, response) => leaveCores(rests, request, response) },
    '/internal/unload_model': { POST: (request, response) => unloadModel(models, request, response) },
  }
}

const leftUsagePath = '/internal/usage/{request_id}'

/** The route that a path asks for. One has a parameter; on a port, `/api/v1` stands for `/v1`. */
function routeOf(path: string, isPublic: boolean): string {
  if (isPublic) return path.startsWith('/api/v1/') ? path.slice('/api'.length) : path
  return path.startsWith('/internal/usage/') ? leftUsagePath : path
}

function sendLeftUsage(left: LeftUsage, request: IncomingMessage, response: ServerResponse): void {
  const id = pathOf(request.url ?? '/').slice('/internal/usage/'.length)
  const usage = left.get(decodeURIComponent(id))
  if (!usage) throw new ApiError('not_found', 'Nothing is known of such a request.')
  sendJson(response, 200, usage)
}

function pathOf(url: string): string {
  const path = url.split('?', 1)[0]!
  return path.length > 1 && path.endsWith('/') ? path.slice(0, -1) : path
}

function requestId(request: IncomingMessage): string {
  const given = request.headers['x-request-id']
  return typeof given === 'string' && /^[\w.:-]{1,128}$/.test(given) ? given : newRequestId()
}

// Where the server listens: a unix socket that only this user may open, or a host and port.

export type Address = { path: string } | { host: string; port: number }

/** Reads `unix:/path`, `HOST:PORT` or `[IPv6]:PORT`. Throws on anything else. */
export function parseAddress(text: string): Address {
  if (text.startsWith('unix:/')) return { path: text.slice('unix:'.length) }
  const match = /^(?:\[([0-9a-fA-F:.]+)\]|([^:[\]]+)):(\d{1,5})$/.exec(text)
  const port = Number(match?.[3])
  if (!match || port > 65_535) throw new Error(`--listen takes unix:/path or HOST:PORT, not '${text}'.`)
  return { host: match[1] ?? match[2]!, port }
}

/** Listens and returns the address in the form of `--listen`, with the real port where 0 was asked for. */
export async function listen(server: Server, address: Address): Promise<string> {
  if ('path' in address) await removeStaleSocket(address.path)
  // The socket has its mode from its first moment on: between listening and a chmod, others could connect.
  const umask = process.umask(0o177)
  try {
    await new Promise<void>((resolve, reject) =>
      server.once('error', reject).listen(address, () => resolve(void server.off('error', reject))),
    )
  } finally {
    process.umask(umask)
  }
  if ('path' in address) {
    chmodSync(address.path, 0o600)
    return `unix:${address.path}`
  }
  const { port } = server.address() as { port: number }
  return `${address.host.includes(':') ? `[${address.host}]` : address.host}:${port}`
}

async function removeStaleSocket(path: string): Promise<void> {
  if (!statSync(path, { throwIfNoEntry: false })?.isSocket()) return
  const isLive = await new Promise<boolean>((resolve) => {
    const socket = connect(path)
    socket.once('connect', () => {
      socket.destroy()
      resolve(true)
    })
    socket.once('error', () => resolve(false))
  })
  if (isLive) throw new Error(`Another process is listening on ${path}.`)
  unlinkSync(path)
}
