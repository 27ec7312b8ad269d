import { isWide } from '../../../lib/eight-bits.ts'
import type { Limits } from '../../platform/limits/index.ts'
import type { PictureFetcher } from '../../platform/outbound/pictures.ts'
import type { Plans } from '../../platform/plans.ts'
import type { Secrets } from '../../platform/storage/secrets.ts'
import type { Context, Feature } from '../feature.ts'
import type { TunedModels } from '../fine-tuning/index.ts'
import type { Hub } from '../hub/index.ts'
import type { StoredCompletions } from '../stored-completions/index.ts'
import type { Usage } from '../usage/index.ts'
import { createEngineClient, type EngineClient } from './engine/client.ts'
import { createEngineHealth } from './engine/health.ts'
import { createEngineProcess, engineOptions } from './engine/process.ts'
import { createScoring } from './fidelity/adapter-verification.ts'
import { createAborts } from './gateway/aborts.ts'
import { countFailures } from './gateway/failures.ts'
import { inferenceRoutes } from './gateway/routes.ts'
import { createMergedCheck } from './merged-adapters/check.ts'
import { createMergedAdapters } from './merged-adapters/manager.ts'
import { createPools, type Pools } from './replicas/pools.ts'
import { readUpstreams } from './replicas/settings.ts'
import { responseRoutes } from './responses/routes.ts'
import { createResponses } from './responses/service.ts'
import { createInference, type Inference } from './service.ts'

/** This machine's engine: its process, its client and its health. Starts nothing yet. */
export function createEngine(context: Context) {
  const options = engineOptions(context.config)
  const process = createEngineProcess({ ...context, options })
  const client = createEngineClient(process, context.log, context.artifacts)
  const health = createEngineHealth(process, client, context.log)
  /** Replicas of deployments on the same cores. */
  const others = new Set<Pick<EngineClient, 'yieldCores'>>()
  return {
    client,
    /** Starts it ahead of the first request. */
    start: () => process.instance(),
    stop: () => process.stop(),
    pid: () => process.current()?.pid,
    async yieldCores(share: number, for_ms: number) {
      await Promise.all([client, ...others].map((each) => each.yieldCores(share, for_ms)))
    },
    /** Another engine that yields its cores too, until the function that is returned is called. */
    yieldsToo(other: Pick<EngineClient, 'yieldCores'>) {
      others.add(other)
      return () => void others.delete(other)
    },
    read: client.read,
    /** Why it cannot answer, or undefined. */
    problem: async () => process.problem() ?? (await health.problem()),
    watchHealth: health.watch,
  }
}

interface Needs {
  plans: Plans
  limits: Limits
  hub: Hub
  models: TunedModels
  usage: Usage
  secrets: Pick<Secrets, 'derive'>
  storedCompletions: StoredCompletions
  pictureFetcher: PictureFetcher
  engine: ReturnType<typeof createEngine>
}

export function createInferenceFeature(
  context: Context,
  { plans, limits, engine, hub, models, usage, storedCompletions, pictureFetcher, secrets }: Needs,
): Feature & { inference: Inference; replicas: Pools['overview'] } {
  const { config, log, metrics } = context
  const { client } = engine
  const pools = createPools({
    engine: client,
    upstreams: readUpstreams(config.upstreams, process.env),
    waiting_max: config.max_waiting,
    cacheSalt: (account_id) => secrets.derive(`prefix caches of ${account_id}`),
    artifacts: context.artifacts,
    log,
  })
  const scoreRows = createScoring(client)
  const mergedAdapters = createMergedAdapters({
    ...context,
    models,
    pools,
    check: createMergedCheck(scoreRows),
    // Sums in 16 bits would be slower than the adapter on eight.
    mergeBase: ({ id, gguf }) => {
      const eight_bits = hub.localOrUndefined(id)?.eight_bits
      return eight_bits && isWide(eight_bits.original_type) ? eight_bits.file : gguf!
    },
    memory_bytes: config.merged_memory_mb * 1e6,
    after_tokens: config.merge_after_tokens,
  })
  const inference = createInference({
    hub,
    models,
    engine: client,
    pools,
    scoreRows,
    mergedAdapters,
    usage,
    pricing: plans.pricing,
    changes: context.changes,
    metrics,
    pictureFetcher,
  })
  metrics.onLook(() => {
    const { serving, refused } = mergedAdapters.counts()
    metrics.mergedAdapters.set(serving)
    metrics.mergeRefusals.set(refused)
    const { replicas, waiting } = pools.overview()
    metrics.inferenceWaiting.set(waiting.reduce((sum, { requests }) => sum + requests, 0))
    for (const { name: replica, up, in_flight, max_concurrent } of replicas) {
      metrics.replicaUp.set({ replica }, up ? 1 : 0)
      metrics.replicaInFlight.set({ replica }, in_flight)
      metrics.replicaSlots.set({ replica }, max_concurrent)
    }
  })
  return {
    inference,
    replicas: pools.overview,
    mount(app) {
      const cutoff = context.stopDeadline
      const aborts = createAborts(cutoff)
      const failures = countFailures(app, inference, usage)
      inferenceRoutes(app, { inference, stored: storedCompletions, limits, aborts, failures })
      responseRoutes(app, {
        inference,
        responses: createResponses(context),
        aborts,
        now: context.now,
        failures,
      })
    },
    sweep: mergedAdapters.removeLeftovers,
    async start() {
      const idle_ms = config.idle_unload_seconds * 1000
      const stops = [engine.watchHealth(), ...(idle_ms > 0 ? [client.unloadIdle(idle_ms)] : [])]
      return [
        {
          async close() {
            for (const stop of stops) stop()
          },
        },
      ]
    },
  }
}
