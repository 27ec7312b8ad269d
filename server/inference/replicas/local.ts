// This machine's own engine as a replica.

import { type EngineClient, engineError } from '../engine/client.ts'
import { bodyFor } from './body.ts'
import { readAll as readBytes, readFirst } from './http-client/client.ts'
import { NotAnswered } from './http-client/connection.ts'
import { type Answer, type Replica, ReplicaFailure, type Target } from './replica.ts'

/** The engine has a queue of its own, in which it puts together what it computes at once; this many fill it. */
const max_concurrent = 256

/** Made where no request is in sight: it lives as long as the stream, and would hold it. */
const usageOfLeft = (engine: EngineClient, request_id: string) => () => engine.usageOfLeft(request_id)

export function createLocalReplica(engine: EngineClient, serves: (base_id: string) => boolean): Replica {
  return {
    name: 'engine',
    max_concurrent,
    outstanding: 0,
    // It is started with the first request that needs it.
    up: () => true,
    takes: ({ base }: Target) => base.gguf !== undefined && serves(base.id),
    status: (target) => engine.status(target),
    load: (target) => engine.load(target),
    unload: (target) => engine.unload(target),
    onFree: () => {},

    async send(ask, signal): Promise<Answer> {
      const headers = {
        'x-served-model-name': ask.model,
        'x-tunery-account': ask.account_id,
        'x-request-id': ask.request_id,
        ...(ask.stream && { 'x-tunery-usage': 'always' }),
      }
      const { response, load_ms } = await engine.post(
        ask.target,
        `/v1${ask.path}`,
        (name) => bodyFor(ask, name),
        headers,
        signal,
      )
      try {
        if (response.status === 200)
          return {
            headers: response.headers,
            load_ms,
            content: ask.stream
              ? { first: await readFirst(response), rest: response }
              : { whole: await readBytes(response) },
            rename: undefined,
            foreign: false,
            askedRunning: false,
            usageOfLeft: usageOfLeft(engine, ask.request_id),
          }
        const error = engineError(response.status, (await readBytes(response)).toString('utf8'))
        throw error.status >= 500
          ? new ReplicaFailure(error.code, error.message, { ...(error.details && { details: error.details }) })
          : error
      } catch (error) {
        if (!(error instanceof NotAnswered)) throw error
        throw new ReplicaFailure(
          'engine_unavailable',
          'The engine ended while it worked on this request. It is being started again: try once more.',
          {
            lost: true,
          },
        )
      }
    },
  }
}
