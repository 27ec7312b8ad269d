// One pool of replicas per base model, created on first use.
import type { Logger } from 'pino'
import { ApiError } from '../../../../contract/errors.ts'
import type { Machine } from '../../../../contract/machine.ts'
import type { Artifacts } from '../../../platform/storage/objects/index.ts'
import type { EngineClient } from '../engine/client.ts'
import type { ModelStatus, Replica, ReplicaRequest, Target } from '../requests/replica.ts'
import type { UpstreamSettings } from '../upstreams/settings.ts'
import { Upstream } from '../upstreams/upstream.ts'
import { chooseReplica } from './choice.ts'
import { createLocalReplica } from './local.ts'
import { Pool, type PoolResponse } from './pool.ts'

export interface Pools {
  run(request: ReplicaRequest, signal: AbortSignal): Promise<PoolResponse>
  /**
   * Loads the target where its requests go: an adapter on the replica that it belongs to, else on every replica that
   * can serve it. Throws if none of them loads it.
   */
  load(target: Target): Promise<void>
  /** Unloads the target from all replicas. */
  unload(target: Target): Promise<void>
  /** The best status among its replicas. */
  status(target: Target): ModelStatus
  /** Throws model_not_callable if no replica can serve the target. */
  requireServable(target: Target): void
  /** Whether an upstream serves this base. */
  hasUpstream(base_id: string): boolean
  /** Whether only upstreams serve the target. */
  isElsewhere(target: Target): boolean
  /** Whether all servers of this base fetch pictures from addresses themselves. */
  fetchesPictures(base_id: string): boolean
  upstreamModels(): string[]
  /** All servers, and the requests that wait for one. */
  overview(): Pick<Machine, 'replicas' | 'waiting'>
}

interface Options {
  engine: EngineClient
  upstreams: UpstreamSettings[]
  waiting_max: number
  cacheSalt: (account_id: string) => string
  artifacts: Pick<Artifacts, 'hold'>
  log: Logger
}

export function createPools({ engine, upstreams, waiting_max, cacheSalt, artifacts, log }: Options): Pools {
  const configured = new Map<string, UpstreamSettings[]>()
  for (const upstream of upstreams)
    configured.set(upstream.model, [...(configured.get(upstream.model) ?? []), upstream])
  // A model with upstreams is not served by this machine too, unless also_local says so.
  const local = createLocalReplica(
    engine,
    (base_id) => configured.get(base_id)?.some(({ also_local }) => also_local) ?? true,
  )

  const pools = new Map<string, Pool<Replica>>()
  const dispatchAll = () => {
    for (const pool of pools.values()) pool.dispatchWaiting()
  }
  function poolOf(base_id: string): Pool<Replica> {
    const existing = pools.get(base_id)
    if (existing) return existing
    const replicas = [
      ...(configured.get(base_id) ?? []).map((settings) => new Upstream(settings, cacheSalt, log, artifacts)),
      local,
    ]
    const pool = new Pool(replicas, waiting_max, dispatchAll)
    pools.set(base_id, pool)
    return pool
  }

  const capableReplicas = (target: Target) =>
    poolOf(target.base.id).replicas.filter((replica) => replica.canServe(target))

  return {
    run: (request, signal) => poolOf(request.target.base.id).run(request, signal),

    async load(target) {
      const capable = capableReplicas(target)
      const first = target.adapter && chooseReplica(capable, target.adapter.id, 0)
      // Where its requests go. Others load it when it is in such demand that they get some.
      if (
        first?.isUp() &&
        (await first.load(target).then(
          () => true,
          () => false,
        ))
      )
        return
      const results = await Promise.allSettled(capable.map((replica) => replica.load(target)))
      // A replica that failed loads it with its first request.
      const failed = results.find((result) => result.status === 'rejected')
      if (failed && results.every(({ status }) => status === 'rejected')) throw failed.reason
    },

    async unload(target) {
      await Promise.allSettled(poolOf(target.base.id).replicas.map((replica) => replica.unload(target)))
    },

    status(target) {
      const states = capableReplicas(target).map((replica) => replica.status(target))
      return states.includes('loaded') ? 'loaded' : states.includes('loading') ? 'loading' : 'not_loaded'
    },

    requireServable(target) {
      if (capableReplicas(target).length > 0) return
      if (target.adapter?.projector)
        throw new ApiError(
          'model_not_callable',
          `The projector of '${target.adapter.id}' was trained with it, and the servers of '${target.base.id}' load ` +
            'none with an adapter. The operator can let this machine serve it too (also_local in TUNERY_UPSTREAMS).',
          { param: 'model' },
        )
      throw new ApiError(
        'model_not_callable',
        `'${target.base.id}' is served by servers that cannot load adapters. The operator can let a vLLM load them ` +
          '(adapters) or this machine serve it too (also_local) in TUNERY_UPSTREAMS.',
        { param: 'model' },
      )
    },

    hasUpstream: (base_id) => configured.has(base_id),
    isElsewhere: (target) => configured.has(target.base.id) && !local.canServe(target),
    fetchesPictures: (base_id) =>
      configured.get(base_id)?.every(({ fetch_images, also_local }) => fetch_images && !also_local) ?? false,
    upstreamModels: () => [...configured.keys()],

    overview() {
      const describe = (replica: Replica, model: string | null) => ({
        name: replica.name,
        model,
        up: replica.isUp(),
        in_flight: replica.inFlight,
        max_concurrent: replica.max_concurrent,
      })
      const upstreams = [...configured.keys()].flatMap((model) =>
        poolOf(model)
          .replicas.filter((replica) => replica !== local)
          .map((replica) => describe(replica, model)),
      )
      return {
        replicas: [describe(local, null), ...upstreams],
        waiting: [...pools].flatMap(([model, pool]) =>
          pool.waiting() > 0 ? [{ model, requests: pool.waiting() }] : [],
        ),
      }
    },
  }
}
