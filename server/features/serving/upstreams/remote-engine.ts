// Our engine or vLLM on machines of a cluster, behind one of the cluster's proxies. The proxy knows which replicas
// there are.
import type { ApiError } from '../../../../contract/errors.ts'
import { engineError } from '../engine/client.ts'
import { BodyTooLarge, readAll, readFirstChunk, send } from '../http-client/client.ts'
import { type ConnectionPool, createConnectionPool, NoResponse } from '../http-client/connection-pool.ts'
import type { HttpResponse } from '../http-client/response.ts'
import { engineBody, engineHeaders, upstreamBody, usesDefaultLength } from '../requests/body.ts'
import {
  type Replica,
  ReplicaFailure,
  type ReplicaRequest,
  type ReplicaResponse,
  type Target,
} from '../requests/replica.ts'
import { readHeaders, requireContentType, requireSupported, unreadable, wholeAnswer } from './answer.ts'
import { exceedsContext, upstreamError } from './error.ts'
import { EventReader, openStream } from './stream.ts'
import { firstByteLimit_ms, startTimeLimit } from './time-limits.ts'
import { type Allowance, allowanceOf } from './usage.ts'

/** Where a target is served, and by what. `model`: the name that vLLM has for it. */
export type RemoteRoute = RouteTo & ({ server: 'engine' } | { server: 'vllm'; model: string })

interface RouteTo {
  /** Path of the engine behind the proxy, without a slash at its end. */
  path: string
  token: string
  /** The header x-weights that its answers must have. */
  weights: string
}

interface Options {
  /** Address of the proxy. */
  origin: string
  max_concurrent: () => number
  /** Separates the accounts in vLLM's prefix cache. */
  cacheSalt: (account_id: string) => string
  /** Undefined: the target is not served there. */
  route: (target: Target) => RemoteRoute | undefined
  /** Called when a request fails for a reason that the cluster may have. */
  onFailed: () => void
}

const idleConnection_ms = 4000
/** The time limit of a whole answer, and how long vLLM may be silent in the middle of a stream. */
const answerMax_bytes = 64e6
const silence_ms = 60_000
/** As of an upstream, and the time in which the cluster may start a replica. */
const first_byte_seconds = 600

export class RemoteEngine implements Replica {
  readonly name: string
  inFlight = 0
  private readonly options: Options
  private readonly pool: ConnectionPool

  constructor(options: Options) {
    this.options = options
    const url = new URL(options.origin)
    const secure = url.protocol === 'https:'
    const hostname = url.hostname.replace(/^\[|\]$/g, '')
    this.name = `Ray Serve at ${url.host}`
    this.pool = createConnectionPool(
      { hostname, port: Number(url.port) || (secure ? 443 : 80), secure },
      idleConnection_ms,
    )
  }

  close(): void {
    this.pool.close()
  }

  get max_concurrent() {
    return this.options.max_concurrent()
  }

  isUp(): boolean {
    return true
  }

  canServe(target: Target): boolean {
    return this.options.route(target) !== undefined
  }

  status(target: Target): 'loaded' | 'not_loaded' {
    return this.options.route(target) ? 'loaded' : 'not_loaded'
  }

  async load(): Promise<void> {}

  async unload(): Promise<void> {}

  onCapacity(): void {}

  async send(request: ReplicaRequest, clientSignal: AbortSignal): Promise<ReplicaResponse> {
    const there = this.options.route(request.target)
    if (!there) throw this.failed('engine_unavailable', 'The Ray cluster does not serve this model now.', false)
    const isVllm = there.server === 'vllm'
    if (isVllm) requireSupported(request.body, false)
    const limit_ms = firstByteLimit_ms(first_byte_seconds, allowanceOf(request, '', true), request.stream)
    const limit = startTimeLimit(limit_ms, () => 0)
    const signal = AbortSignal.any([clientSignal, limit.signal])
    try {
      const { response, allowance } = await this.post(request, there, signal)
      const weights = response.headers['x-weights']
      if (weights !== there.weights) {
        response.destroy()
        throw this.failed(
          'engine_failed',
          'A replica had other weights than those of the model. Its answer was not sent.',
          true,
        )
      }
      const { headers } = response
      return isVllm
        ? {
            headers: readHeaders(headers),
            weights,
            load_ms: 0,
            ...(await vllmAnswer(response, request, allowance, signal)),
          }
        : { headers, weights, load_ms: 0, content: await engineContent(response, request) }
    } catch (error) {
      if (limit.signal.aborted && !clientSignal.aborted)
        throw this.failed(
          'upstream_timeout',
          'The replicas of this model in the Ray cluster sent nothing in time.',
          true,
        )
      throw this.unreachable(error, signal)
    } finally {
      limit.clear()
    }
  }

  private failed(code: 'engine_unavailable' | 'engine_failed' | 'upstream_timeout', message: string, lost: boolean) {
    this.options.onFailed()
    return new ReplicaFailure(code, message, { lost })
  }

  private unreachable(error: unknown, signal: AbortSignal) {
    return error instanceof NoResponse && !signal.aborted
      ? this.failed(
          'engine_unavailable',
          `The replicas of this model in the Ray cluster do not answer (${error.message}). Try again in a moment.`,
          error.mayHaveStarted,
        )
      : error
  }

  /** Resolves with an answer of status 200. */
  private async post(
    request: ReplicaRequest,
    there: RemoteRoute,
    signal: AbortSignal,
  ): Promise<{ response: HttpResponse; allowance: Allowance }> {
    const { base, adapter } = request.target
    const isVllm = there.server === 'vllm'
    const headers = {
      authorization: `Bearer ${there.token}`,
      ...(isVllm ? { 'x-request-id': request.request_id, ...request.span?.headers() } : engineHeaders(request)),
    }
    const path = `${there.path}/v1${request.path}`
    for (let addDefaultLength = true; ; addDefaultLength = false) {
      const payload = isVllm
        ? upstreamBody(request, there.model, {
            server: 'vllm',
            addDefaultLength,
            cache_salt: this.options.cacheSalt(request.account_id),
          })
        : engineBody(request, (adapter ?? base).id)
      const allowance = allowanceOf(request, payload, addDefaultLength)
      // The cluster does not tell what a request has used whose client left.
      if (request.progress)
        request.progress.used = { prompt_tokens: allowance.prompt_tokens, completion_tokens: 0, cached_tokens: 0 }
      const response = await send(this.pool, { method: 'POST', path, headers, payload }, signal)
      if (response.status === 200) return { response, allowance }
      const text = (await readAll(response, answerMax_bytes)).toString('utf8')
      // The context has less room than the default length: without one, vLLM uses the room that there is.
      if (isVllm && addDefaultLength && usesDefaultLength(request.body) && exceedsContext(response.status, text))
        continue
      throw isVllm ? this.vllmError(response, text, request.body) : this.engineErrorOf(response.status, text)
    }
  }

  /**
   * What the client did wrong is its error; all else is of the cluster: its proxy answers 404 and 500 without a reason.
   */
  private vllmError({ status, headers }: HttpResponse, text: string, body: Record<string, unknown>): ApiError {
    if (status < 400 || status >= 500 || status === 401 || status === 404) return this.unavailable(status)
    const { error, retryable } = upstreamError(status, text, { body, retryAfter: headers['retry-after'] })
    return retryable ? new ReplicaFailure(error.code, error.message) : error
  }

  private unavailable(status: number): ReplicaFailure {
    const why = `The replicas of this model in the Ray cluster cannot take requests now (${status})`
    return this.failed('engine_unavailable', `${why}. Try again in a moment.`, status === 500)
  }

  /**
   * The engine's own error format; anything else comes from the cluster: a replica that dies, a deleted application.
   */
  private engineErrorOf(status: number, text: string): ApiError {
    const isEngine = text.startsWith('{"error":') && text.includes('"code"')
    if (isEngine && status < 500) return engineError(status, text)
    if (isEngine) {
      const error = engineError(status, text)
      return new ReplicaFailure(error.code, error.message, { ...(error.details && { details: error.details }) })
    }
    return this.unavailable(status)
  }
}

async function engineContent(response: HttpResponse, { stream }: ReplicaRequest): Promise<ReplicaResponse['content']> {
  return stream ? { firstChunk: await readFirstChunk(response), stream: response } : { body: await readAll(response) }
}

async function vllmAnswer(
  response: HttpResponse,
  request: ReplicaRequest,
  allowance: Allowance,
  signal: AbortSignal,
): Promise<Pick<ReplicaResponse, 'content' | 'usage'>> {
  requireContentType(response, request.stream)
  if (!request.stream) {
    const bytes = await readAll(response, answerMax_bytes).catch((error) => {
      throw error instanceof BodyTooLarge ? unreadable(`cannot be read: ${error.message}`) : error
    })
    const { body, usage } = wholeAnswer(bytes, request, allowance)
    return { content: { body }, usage: () => usage }
  }
  const reader = new EventReader(request, allowance)
  const broken = () => unreadable('broke in the middle of this answer')
  const silent = () => unreadable('sent nothing in the middle of this answer for too long')
  const content = await openStream(response, reader, { silence_ms, signal, broken, silent })
  return { content, usage: () => reader.usage() }
}
