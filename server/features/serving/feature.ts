import { isWide } from '../../../lib/eight-bits.ts'
import type { Secrets } from '../../platform/storage/secrets.ts'
import type { Context, Feature } from '../feature.ts'
import type { Hub } from '../hub/index.ts'
import type { TunedModels } from '../models/index.ts'
import type { EngineClient } from './engine/client.ts'
import type { Engine } from './engine/engine.ts'
import type { ScoreRows } from './fidelity/adapter-verification.ts'
import { createMergedCheck } from './merged-adapters/check.ts'
import { MergedAdapters } from './merged-adapters/manager.ts'
import { createPools, type Pools } from './replicas/pools.ts'
import { readUpstreams } from './upstreams/settings.ts'

export { createEngine } from './engine/engine.ts'
export { createCheckpoints } from './engine/weight-files.ts'
export { createComparison, createScoring } from './fidelity/adapter-verification.ts'
export type { ServingSet } from './replicas/replica-set.ts'

/** What answers requests: this machine's engine, the pools of all bases, and the adapters that are merged. */
export interface Serving {
  engine: EngineClient
  pools: Pools
  mergedAdapters: MergedAdapters
}

interface Needs {
  engine: Engine
  hub: Hub
  models: TunedModels
  /** Has the engine score the rows of a model. */
  scoreRows: ScoreRows
  secrets: Pick<Secrets, 'derive'>
}

export function createServingFeature(
  context: Context,
  { engine, hub, models, scoreRows, secrets }: Needs,
): Feature & { serving: Serving } {
  const { config, events, artifacts, dataDir, trainingSetup, python, min_free_mb, log, metrics } = context
  const { client } = engine
  const pools = createPools({
    engine: client,
    upstreams: readUpstreams(config.upstreams, process.env),
    waiting_max: config.max_waiting,
    cacheSalt: (account_id) => secrets.derive(`prefix caches of ${account_id}`),
    artifacts,
    log,
  })
  const mergedAdapters = new MergedAdapters({
    models,
    pools,
    check: createMergedCheck(scoreRows),
    artifacts,
    dataDir,
    trainingSetup,
    python,
    min_free_mb,
    log,
    // Sums in 16 bits would be slower than the adapter on eight.
    mergeBase: ({ id, gguf }) => {
      const eight_bits = hub.localOrUndefined(id)?.eight_bits
      return eight_bits && isWide(eight_bits.original_type) ? eight_bits.file : gguf!
    },
    // vLLM computes adapters beside each other as fast as merged weights.
    memory_bytes: engine.choice.vllm === null ? config.merged_memory_mb * 1e6 : 0,
    after_tokens: config.merge_after_tokens,
  })
  events.on('model.deleted', async (_, { id, gguf, kind, base_model_id }) => {
    const weights = { id, gguf }
    return () => {
      mergedAdapters.forget(id)
      void pools.unload(kind === 'model' ? { base: weights } : { base: { id: base_model_id }, adapter: weights })
    }
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
    serving: { engine: client, pools, mergedAdapters },
    sweep: () => mergedAdapters.removeLeftovers(),
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
