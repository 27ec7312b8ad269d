// The engine on this machine, as a replica.
import { type EngineClient, engineError } from '../engine/client.ts'
import { readAll, readFirstChunk } from '../http-client/client.ts'
import { NoResponse } from '../http-client/connection-pool.ts'
import { engineBody, engineHeaders } from '../requests/body.ts'
import { type Replica, ReplicaFailure, type ReplicaResponse, type Target } from '../requests/replica.ts'

/** The engine batches requests from its own queue; this many fill it. */
const max_concurrent = 256

/** Outside of `send`, so that the closure, which lives as long as the stream, does not retain the request. */
const abortedUsageOf = (engine: EngineClient, request_id: string) => () => engine.abortedUsage(request_id)

export function createLocalReplica(engine: EngineClient, serves: (base_id: string) => boolean): Replica {
  return {
    name: 'engine',
    max_concurrent,
    inFlight: 0,
    // The first request starts the engine.
    isUp: () => true,
    canServe: ({ base }: Target) => base.gguf !== undefined && serves(base.id),
    status: (target) => engine.status(target),
    load: (target) => engine.load(target),
    unload: (target) => engine.unload(target),
    onCapacity: () => {},

    async send(request, signal): Promise<ReplicaResponse> {
      const { response, load_ms } = await engine.post(
        request.target,
        `/v1${request.path}`,
        (name) => engineBody(request, name),
        engineHeaders(request),
        signal,
        request.span,
      )
      try {
        if (response.status === 200)
          return {
            headers: response.headers,
            weights: response.headers['x-weights'],
            load_ms,
            content: request.stream
              ? { firstChunk: await readFirstChunk(response), stream: response }
              : { body: await readAll(response) },
            abortedUsage: abortedUsageOf(engine, request.request_id),
          }
        const error = engineError(response.status, (await readAll(response)).toString('utf8'))
        throw error.status >= 500
          ? new ReplicaFailure(error.code, error.message, { ...(error.details && { details: error.details }) })
          : error
      } catch (error) {
        if (!(error instanceof NoResponse)) throw error
        throw new ReplicaFailure(
          'engine_unavailable',
          'The engine ended while it worked on this request. It is being started again: try once more.',
          { lost: true },
        )
      }
    },
  }
}
