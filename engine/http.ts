// The HTTP surface: which path and method goes where.
import { randomUUID } from 'node:crypto'
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import { ApiError } from '../contract/errors.ts'
import { sendError, sendJson } from './http-io.ts'
import type { LeftUsage } from './left-usage.ts'
import type { Metrics } from './metrics.ts'
import { chatCompletions } from './routes/chat.ts'
import { completions } from './routes/completions.ts'
import { type EmbeddingServices, embeddings } from './routes/embeddings.ts'
import type { GenerationServices } from './routes/generate.ts'
import { listModels, loadAdapter, loadModel, unloadAdapter, unloadModel } from './routes/models.ts'
import { type Scoring, scoreTokens } from './score.ts'

export type HttpServices = GenerationServices & EmbeddingServices & { metrics: Metrics; scoring: Scoring; isStopping(): boolean }
type Handler = (request: IncomingMessage, response: ServerResponse) => void | Promise<void>

/** Builds the server; listening is the caller's. */
export function createHttpServer(services: HttpServices): Server {
  const { models, limits, metrics } = services
  const routes: Record<string, Record<string, Handler>> = {
    '/health': { GET: (_, response) => sendJson(response, 200, { status: 'ok' }) },
    '/metrics': {
      GET: async (_, response) => void response.writeHead(200, { 'content-type': 'text/plain; version=0.0.4; charset=utf-8' }).end(await metrics.text()),
    },
    '/v1/models': { GET: (_, response) => listModels(models, limits, response) },
    '/v1/chat/completions': { POST: (request, response) => chatCompletions(services, request, response) },
    '/v1/completions': { POST: (request, response) => completions(services, request, response) },
    '/v1/embeddings': { POST: (request, response) => embeddings(services, request, response) },
    '/v1/load_lora_adapter': { POST: (request, response) => loadAdapter(models, request, response) },
    '/v1/unload_lora_adapter': { POST: (request, response) => unloadAdapter(models, request, response) },
    '/internal/score': { POST: (request, response) => scoreTokens(models, services.scoring, request, response) },
    [leftUsagePath]: { GET: (request, response) => sendLeftUsage(services.left, request, response) },
    '/internal/load_model': { POST: (request, response) => loadModel(models, request, response) },
    '/internal/unload_model': { POST: (request, response) => unloadModel(models, request, response) },
  }

  const find = (request: IncomingMessage, response: ServerResponse, path: string): Handler => {
    const methods = routes[path]
    if (!methods) throw new ApiError('not_found', `There is no ${path} here.`)
    const handler = methods[request.method ?? '']
    if (handler) return handler
    response.setHeader('allow', Object.keys(methods).join(', '))
    throw new ApiError('method_not_allowed', `${path} takes ${Object.keys(methods).join(', ')}, not ${request.method}.`)
  }

  const handle = async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
    const path = routeOf(pathOf(request.url ?? '/'))
    response.setHeader('x-request-id', requestId(request))
    response.once('finish', () => metrics.request(routes[path] ? path : 'other', response.statusCode))
    try {
      const handler = find(request, response, path)
      if (services.isStopping() && request.method === 'POST') throw new ApiError('shutting_down', 'The engine is stopping.')
      await handler(request, response)
    } catch (error) {
      if (!(error instanceof ApiError) && !request.destroyed) services.onFault(error)
      sendError(response, error)
    }
  }

  return createServer({ keepAliveTimeout: 60_000 }, (request, response) => void handle(request, response))
}

const leftUsagePath = '/internal/usage/{request_id}'

/** The one route that has a parameter; every other is found as it is. */
const routeOf = (path: string) => (path.startsWith('/internal/usage/') ? leftUsagePath : path)

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
  return typeof given === 'string' && /^[\w.:-]{1,128}$/.test(given) ? given : `req_${randomUUID().replaceAll('-', '')}`
}
