// Our engine on machines of a cluster, behind one of the cluster's proxies. The proxy knows which replicas there are.
import type { ApiError } from '../../../contract/errors.ts'
import { engineError } from '../engine/client.ts'
import { engineBody, engineHeaders } from './body.ts'
import { readAll, readFirstChunk, send } from './http-client/client.ts'
import { createConnectionPool, NoResponse } from './http-client/connection-pool.ts'
import { type Replica, ReplicaFailure, type ReplicaResponse, type Target } from './replica.ts'

/** Where a target is served. */
export interface RemoteRoute {
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
  /** Undefined: the target is not served there. */
  route: (target: Target) => RemoteRoute | undefined
  /** Called when a request fails for a reason that the cluster may have. */
  onFailed: () => void
}

const idleConnection_ms = 4000

export function createRemoteEngine({ origin, max_concurrent, route, onFailed }: Options): Replica & { close(): void } {
  const url = new URL(origin)
  const secure = url.protocol === 'https:'
  const hostname = url.hostname.replace(/^\[|\]$/g, '')
  const pool = createConnectionPool(
    { hostname, port: Number(url.port) || (secure ? 443 : 80), secure },
    idleConnection_ms,
  )

  const failed = (code: 'engine_unavailable' | 'engine_failed', message: string, lost: boolean) => {
    onFailed()
    return new ReplicaFailure(code, message, { lost })
  }
  const unreachable = (error: unknown, signal: AbortSignal) =>
    error instanceof NoResponse && !signal.aborted
      ? failed(
          'engine_unavailable',
          `The replicas of this model in the Ray cluster do not answer (${error.message}). Try again in a moment.`,
          error.mayHaveStarted,
        )
      : error

  return {
    name: `Ray Serve at ${url.host}`,
    get max_concurrent() {
      return max_concurrent()
    },
    inFlight: 0,
    isUp: () => true,
    canServe: (target) => route(target) !== undefined,
    status: (target) => (route(target) ? 'loaded' : 'not_loaded'),
    load: async () => {},
    unload: async () => {},
    onCapacity: () => {},
    close: pool.close,

    async send(request, signal): Promise<ReplicaResponse> {
      const { base, adapter } = request.target
      const there = route(request.target)
      if (!there) throw failed('engine_unavailable', 'The Ray cluster does not serve this model now.', false)
      const headers = { authorization: `Bearer ${there.token}`, ...engineHeaders(request) }
      const path = `${there.path}/v1${request.path}`
      const payload = engineBody(request, (adapter ?? base).id)
      try {
        const response = await send(pool, { method: 'POST', path, headers, payload }, signal)
        const weights = response.headers['x-weights']
        if (response.status !== 200) throw await errorOf(response.status, (await readAll(response)).toString('utf8'))
        if (weights !== there.weights) {
          response.destroy()
          throw failed(
            'engine_failed',
            'A replica had other weights than those of the model. Its answer was not sent.',
            true,
          )
        }
        return {
          headers: response.headers,
          weights,
          load_ms: 0,
          content: request.stream
            ? { firstChunk: await readFirstChunk(response), stream: response }
            : { body: await readAll(response) },
          renameModelTo: undefined,
          fromUpstream: false,
          addedChunkUsage: false,
        }
      } catch (error) {
        throw unreachable(error, signal)
      }
    },
  }

  /** Of the engine, in its own form; all else is of the cluster: a replica that dies, or an application that is gone. */
  async function errorOf(status: number, text: string): Promise<ApiError> {
    const isEngine = text.startsWith('{"error":') && text.includes('"code"')
    if (isEngine && status < 500) return engineError(status, text)
    if (isEngine) {
      const error = engineError(status, text)
      return new ReplicaFailure(error.code, error.message, { ...(error.details && { details: error.details }) })
    }
    const lost = status === 500
    return failed(
      'engine_unavailable',
      `The replicas of this model in the Ray cluster cannot take requests now (${status}). Try again in a moment.`,
      lost,
    )
  }
}
