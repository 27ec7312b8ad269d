// Which replicas serve which model.
import type { Logger } from 'pino'
import { ApiError } from '../../../contract/errors.ts'
import type { EngineClient } from '../engine/client.ts'
import { createLocalReplica } from './local.ts'
import { createPool, type Pool, type Served } from './pool.ts'
import type { Ask, ModelStatus, Target } from './replica.ts'
import type { UpstreamSettings } from './settings.ts'
import { createUpstream } from './upstream.ts'

export interface Pools {
  run(ask: Ask, signal: AbortSignal): Promise<Served>
  /** Loads the target on the replicas that will serve it. */
  load(target: Target): Promise<void>
  /** Frees what the replicas hold of a model that is gone. */
  unload(target: Target): Promise<void>
  /** The best that any of its replicas has. */
  status(target: Target): ModelStatus
  /** Throws model_not_callable where no replica could serve the target. */
  requireServable(target: Target): void
  /** Whether an upstream serves this base. */
  hasUpstream(base_id: string): boolean
  upstreamModels(): string[]
}

interface Options {
  engine: EngineClient
  upstreams: UpstreamSettings[]
  waiting_max: number
  salt: (account_id: string) => string
  log: Logger
}

export function createPools({ engine, upstreams, waiting_max, salt, log }: Options): Pools {
  const configured = new Map<string, UpstreamSettings[]>()
  for (const upstream of upstreams)
    configured.set(upstream.model, [...(configured.get(upstream.model) ?? []), upstream])
  // An operator who names servers for a model does not expect this machine to work for it as well, unless that is said.
  const local = createLocalReplica(
    engine,
    (base_id) => configured.get(base_id)?.some(({ also_local }) => also_local) ?? true,
  )

  const pools = new Map<string, Pool>()
  const letInAll = () => {
    for (const pool of pools.values()) pool.letIn()
  }
  function poolOf(base_id: string): Pool {
    const known = pools.get(base_id)
    if (known) return known
    const replicas = [...(configured.get(base_id) ?? []).map((settings) => createUpstream(settings, salt, log)), local]
    const pool = createPool(replicas, waiting_max, letInAll)
    pools.set(base_id, pool)
    return pool
  }

  const able = (target: Target) => poolOf(target.base.id).replicas.filter((replica) => replica.takes(target))

  return {
    run: (ask, signal) => poolOf(ask.target.base.id).run(ask, signal),

    async load(target) {
      const results = await Promise.allSettled(able(target).map((replica) => replica.load(target)))
      // One that is away for the moment loads it with its first request.
      const failed = results.find((result) => result.status === 'rejected')
      if (failed && results.every(({ status }) => status === 'rejected')) throw failed.reason
    },

    async unload(target) {
      await Promise.allSettled(poolOf(target.base.id).replicas.map((replica) => replica.unload(target)))
    },

    status(target) {
      const states = able(target).map((replica) => replica.status(target))
      return states.includes('loaded') ? 'loaded' : states.includes('loading') ? 'loading' : 'not_loaded'
    },

    requireServable(target) {
      if (able(target).length > 0) return
      throw new ApiError(
        'model_not_callable',
        `'${target.base.id}' is served by servers that cannot load adapters. The operator can let a vLLM load them (adapters) or this machine serve it too (also_local) in TUNERY_UPSTREAMS.`,
        { param: 'model' },
      )
    },

    hasUpstream: (base_id) => configured.has(base_id),
    upstreamModels: () => [...configured.keys()],
  }
}
