// HTTP routes of the engine, and where it listens.

import { chmodSync, statSync, unlinkSync } from 'node:fs'
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import { connect } from 'node:net'
import { ApiError } from '../../contract/errors.ts'
import { drain } from '../../lib/http/refusals.ts'
import type { Tracing } from '../../telemetry/tracing.ts'
import type { CpuThrottle } from '../batching/cpu-throttle.ts'
import type { ProgressWatchdog } from '../batching/progress-watchdog.ts'
import type { DeviceClaims } from '../vllm/sleep.ts'
import type { AbortedUsage } from './aborted-usage.ts'
import { sendError, sendJson } from './io.ts'
import { admit, createPublicServer, newRequestId, type PublicAccess } from './public.ts'
import { chatCompletions } from './routes/chat.ts'
import { completions } from './routes/completions.ts'
import { type EmbeddingServices, embeddings } from './routes/embeddings.ts'
import type { GenerationServices } from './routes/generate.ts'
import {
  claimDevices,
  leaveCores,
  listModels,
  loadAdapter,
  loadModel,
  unloadAdapter,
  unloadModel,
} from './routes/models.ts'
import { sample } from './routes/sample.ts'
import { type EchoServices, type ScoreServices, scoreTokens } from './routes/score.ts'
import { beginSpan, idsOf } from './trace.ts'

export type HttpServices = GenerationServices &
  EmbeddingServices &
  ScoreServices &
  EchoServices & {
    tracing: Tracing | undefined
    cpuThrottle: CpuThrottle
    watchdog: ProgressWatchdog
    claims: DeviceClaims
    isStopping(): boolean
  }
type Handler = (request: IncomingMessage, response: ServerResponse) => void | Promise<void>

type Routes = Record<string, Record<string, Handler>>

/** Builds the server; the caller calls `listen`. `access` is null on the private unix socket of the service. */
export function createHttpServer(services: HttpServices, access: PublicAccess | null): Server {
  const { models, limits, metrics, tracing } = services
  const live: Handler = (_, response) => sendJson(response, 200, { status: 'ok' })
  const ready: Handler = (_, response) => {
    if (services.isStopping()) throw new ApiError('shutting_down', 'The engine is stopping.')
    const stalled_ms = services.watchdog.stalled_ms()
    if (stalled_ms > 0)
      throw new ApiError(
        'engine_unavailable',
        `The engine has had work for ${Math.round(stalled_ms / 1000)} s without any progress.`,
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
    // Node drops the body of a HEAD response.
    const handler = methods[request.method === 'HEAD' ? 'GET' : (request.method ?? '')]
    if (handler) return handler
    response.setHeader('allow', Object.keys(methods).join(', '))
    throw new ApiError('method_not_allowed', `${path} takes ${Object.keys(methods).join(', ')}, not ${request.method}.`)
  }

  const handle = async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
    const path = routeOf(pathOf(request.url ?? '/'), access !== null)
    response.setHeader('x-request-id', requestId(request))
    if (tracing && request.method === 'POST' && routes[path]) beginSpan(tracing, request, response, path)
    response.once('finish', () => metrics.request(routes[path] ? path : 'other', response.statusCode))
    try {
      if (access) admit(access, request, response, path)
      const handler = find(request, response, path)
      if (services.isStopping() && request.method === 'POST')
        throw new ApiError('shutting_down', 'The engine is stopping.')
      await handler(request, response)
    } catch (error) {
      if (!(error instanceof ApiError) && !request.destroyed) services.onFault(error, idsOf(request, response))
      if (access && !request.complete) {
        // Drain the unread body so that the client can read the error, then close: the connection cannot be reused.
        response.setHeader('connection', 'close')
        await drain(request)
      }
      sendError(response, error)
    }
  }

  const listener = (request: IncomingMessage, response: ServerResponse) => void handle(request, response)
  return access ? createPublicServer(access, listener) : createServer({ keepAliveTimeout: 60_000 }, listener)
}

/** Routes for the service only: they take local file paths and expose the usage of any request. */
function internalRoutes(services: HttpServices): Routes {
  const { models, abortedUsage, cpuThrottle, claims } = services
  return {
    '/v1/load_lora_adapter': { POST: (request, response) => loadAdapter(models, request, response) },
    '/v1/unload_lora_adapter': { POST: (request, response) => unloadAdapter(models, request, response) },
    '/internal/sample': { POST: (request, response) => sample(services, request, response) },
    '/internal/score': { POST: (request, response) => scoreTokens(services, request, response) },
    [abortedUsagePath]: { GET: (request, response) => sendAbortedUsage(abortedUsage, request, response) },
    '/internal/load_model': { POST: (request, response) => loadModel(models, claims, request, response) },
    '/internal/claim_devices': {
      GET: (_, response) => sendJson(response, 200, claims.list()),
      POST: (request, response) => claimDevices(claims, request, response),
    },
    '/internal/leave_cores': { POST: (request, response) => leaveCores(cpuThrottle, request, response) },
    '/internal/unload_model': { POST: (request, response) => unloadModel(models, request, response) },
  }
}

const abortedUsagePath = '/internal/usage/{request_id}'

/** Maps a path to its route. Removes `/api` on a port; matches the usage route, which has a parameter. */
function routeOf(path: string, isPublic: boolean): string {
  if (isPublic) return path.startsWith('/api/v1/') ? path.slice('/api'.length) : path
  return path.startsWith('/internal/usage/') ? abortedUsagePath : path
}

function sendAbortedUsage(abortedUsage: AbortedUsage, request: IncomingMessage, response: ServerResponse): void {
  const id = pathOf(request.url ?? '/').slice('/internal/usage/'.length)
  const usage = abortedUsage.get(decodeURIComponent(id))
  if (!usage) throw new ApiError('not_found', 'Nothing is known of such a request.')
  sendJson(response, 200, usage)
}

function pathOf(url: string): string {
  const path = url.split('?', 1)[0]!
  return path.length > 1 && path.endsWith('/') ? path.slice(0, -1) : path
}

function requestId(request: IncomingMessage): string {
  const fromClient = request.headers['x-request-id']
  return typeof fromClient === 'string' && /^[\w.:-]{1,128}$/.test(fromClient) ? fromClient : newRequestId()
}

// Listen addresses: a unix socket that only this user may open, or host and port.

export type Address = { path: string } | { host: string; port: number }

/** Parses `unix:/path`, `HOST:PORT` or `[IPv6]:PORT`. Throws on anything else. */
export function parseAddress(text: string): Address {
  if (text.startsWith('unix:/')) return { path: text.slice('unix:'.length) }
  const match = /^(?:\[([0-9a-fA-F:.]+)\]|([^:[\]]+)):(\d{1,5})$/.exec(text)
  const port = Number(match?.[3])
  if (!match || port > 65_535) throw new Error(`--listen takes unix:/path or HOST:PORT, not '${text}'.`)
  return { host: match[1] ?? match[2]!, port }
}

/** Listens and returns the address in the form of `--listen`, with the actual port if 0 was given. */
export async function listen(server: Server, address: Address): Promise<string> {
  if ('path' in address) await removeStaleSocket(address.path)
  // Set the mode by umask: between listen and a chmod, other users could connect.
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
