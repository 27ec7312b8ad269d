// Prometheus metrics of the engine.
import {
  createMetrics as createRegistry,
  type Declarations,
  latencyBuckets,
  tokenBuckets,
} from '../../telemetry/metrics.ts'
import type { StepStats } from '../batching/runner.ts'
import type { SchedulerCounts } from '../batching/scheduler.ts'

/** Nothing here is labelled with a model: adapters are without number. */
export const engineMetrics = {
  requests: {
    type: 'counter',
    name: 'tunery_engine_requests_total',
    help: 'Answered requests.',
    unit: 'requests',
    labels: ['route', 'status'],
    across: 'sum',
  },
  promptTokens: {
    type: 'counter',
    name: 'tunery_engine_prompt_tokens_total',
    help: 'Prompt tokens computed, without those reused from the KV cache.',
    unit: 'tokens',
    across: 'sum',
  },
  cachedTokens: {
    type: 'counter',
    name: 'tunery_engine_prefix_cache_tokens_total',
    help: 'Prompt tokens reused from the KV cache.',
    unit: 'tokens',
    across: 'sum',
  },
  pictures: {
    type: 'counter',
    name: 'tunery_engine_pictures_total',
    help: 'Pictures of requests, by whether they were encoded or their features were cached.',
    unit: 'pictures',
    labels: ['source'],
    across: 'sum',
  },
  pictureSeconds: {
    type: 'counter',
    name: 'tunery_engine_picture_encode_seconds_total',
    help: 'Time to encode pictures.',
    unit: 'seconds',
    across: 'sum',
  },
  outputTokens: {
    type: 'counter',
    name: 'tunery_engine_generation_tokens_total',
    help: 'Tokens generated.',
    unit: 'tokens',
    across: 'sum',
  },
  failures: {
    type: 'counter',
    name: 'tunery_engine_decode_failures_total',
    help: 'Decodes that failed.',
    unit: 'steps',
    across: 'sum',
  },
  decode: {
    type: 'histogram',
    name: 'tunery_engine_decode_seconds',
    help: 'Time of one decode step.',
    unit: 'seconds',
    buckets: [0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2],
    across: 'sum',
  },
  queue: {
    type: 'histogram',
    name: 'tunery_engine_queue_seconds',
    help: 'Time from a tokenized prompt to its slot in a batch.',
    unit: 'seconds',
    buckets: latencyBuckets,
    across: 'sum',
  },
  firstToken: {
    type: 'histogram',
    name: 'tunery_engine_time_to_first_token_seconds',
    help: 'Time from a tokenized prompt to its first token, streamed or not.',
    unit: 'seconds',
    buckets: latencyBuckets,
    across: 'sum',
  },
  perToken: {
    type: 'histogram',
    name: 'tunery_engine_time_per_output_token_seconds',
    help: 'Time per token after the first one, mean of an answer.',
    unit: 'seconds',
    buckets: tokenBuckets,
    across: 'sum',
  },
  running: {
    type: 'gauge',
    name: 'tunery_engine_sequences_running',
    help: 'Sequences being computed.',
    unit: 'sequences',
    across: 'sum',
  },
  waiting: {
    type: 'gauge',
    name: 'tunery_engine_sequences_waiting',
    help: 'Requests waiting for a slot.',
    unit: 'sequences',
    across: 'sum',
  },
  runners: {
    type: 'gauge',
    name: 'tunery_engine_runners',
    help: 'Batch runners (contexts) in memory.',
    unit: 'runners',
    across: 'sum',
  },
  slots: {
    type: 'gauge',
    name: 'tunery_engine_slots',
    help: 'Slots of all batch runners.',
    unit: 'slots',
    across: 'sum',
  },
  cacheUsage: {
    type: 'gauge',
    name: 'tunery_engine_kv_cache_usage_ratio',
    help: 'Share of the KV cache, by tokens, that running sequences use; the rest is free or prefix cache.',
    unit: 'ratio',
    across: 'max',
  },
  cacheBytes: {
    type: 'gauge',
    name: 'tunery_engine_kv_cache_bytes',
    help: 'Approximate memory of all contexts: KV caches and compute buffers.',
    unit: 'bytes',
    across: 'sum',
  },
  cacheBytesMax: {
    type: 'gauge',
    name: 'tunery_engine_kv_cache_limit_bytes',
    help: 'Most memory for all contexts: a quarter of the machine.',
    unit: 'bytes',
    across: 'sum',
  },
  bases: {
    type: 'gauge',
    name: 'tunery_engine_base_models',
    help: 'Base models loaded.',
    unit: 'models',
    across: 'sum',
  },
  adapters: {
    type: 'gauge',
    name: 'tunery_engine_adapters',
    help: 'Adapters loaded.',
    unit: 'adapters',
    across: 'sum',
  },
  asleep: {
    type: 'gauge',
    name: 'tunery_engine_base_models_asleep',
    help: 'Base models that sleep while a training has their memory.',
    unit: 'models',
    across: 'sum',
  },
  threads: {
    type: 'gauge',
    name: 'tunery_engine_step_threads',
    help: 'Threads that computed the latest step: fewer than all while other programs keep cores busy.',
    unit: 'threads',
    across: 'sum',
  },
  cpu: {
    type: 'counter',
    name: 'tunery_engine_process_cpu_seconds_total',
    help: 'Processor time of the process, all threads.',
    unit: 'seconds',
    across: 'sum',
  },
  memory: {
    type: 'gauge',
    name: 'tunery_engine_process_resident_memory_bytes',
    help: 'Memory of the process.',
    unit: 'bytes',
    across: 'sum',
  },
  spans: {
    type: 'counter',
    name: 'tunery_engine_trace_spans_total',
    help: 'Spans of traces: exported, failed (the collector refused them or was away), dropped (the queue was full).',
    unit: 'spans',
    labels: ['outcome'],
    across: 'sum',
  },
} as const satisfies Declarations

export interface Metrics {
  text(): Promise<string>
  request(route: string, status: number): void
  step(stats: StepStats): void
  /** Computed by vLLM, whose steps are not seen here. */
  tokens(prompt_tokens: number, output_tokens: number): void
  picture(source: 'encoded' | 'cached', seconds: number): void
  queued(seconds: number, cached_tokens: number): void
  firstToken(seconds: number): void
  perToken(seconds: number): void
  spans(outcome: string, count: number): void
}

export function createMetrics(
  counts: () => SchedulerCounts,
  models: () => { bases: number; adapters: number; asleep: number },
  stepThreads: () => number,
  context_bytes_max: number,
): Metrics {
  const { registry, metrics } = createRegistry(engineMetrics)
  return {
    text() {
      const { running, waiting, runners, runner_bytes, slots, cache_usage } = counts()
      const { bases, adapters, asleep } = models()
      metrics.running.set(running)
      metrics.waiting.set(waiting)
      metrics.runners.set(runners)
      metrics.slots.set(slots)
      metrics.cacheUsage.set(cache_usage)
      metrics.cacheBytes.set(runner_bytes)
      metrics.cacheBytesMax.set(context_bytes_max)
      metrics.bases.set(bases)
      metrics.adapters.set(adapters)
      metrics.asleep.set(asleep)
      metrics.threads.set(stepThreads())
      const { user, system } = process.cpuUsage()
      metrics.cpu.reset()
      metrics.cpu.inc((user + system) / 1e6)
      metrics.memory.set(process.memoryUsage.rss())
      return registry.metrics()
    },
    request: (route, status) => metrics.requests.inc({ route, status: String(status) }),
    step: (stats) => {
      metrics.promptTokens.inc(stats.prompt_tokens)
      metrics.outputTokens.inc(stats.output_tokens)
      metrics.decode.observe(stats.seconds)
      if (stats.failed) metrics.failures.inc()
    },
    tokens(prompt_tokens, output_tokens) {
      metrics.promptTokens.inc(prompt_tokens)
      metrics.outputTokens.inc(output_tokens)
    },
    picture(source, seconds) {
      metrics.pictures.inc({ source })
      metrics.pictureSeconds.inc(seconds)
    },
    queued(seconds, cached_tokens) {
      metrics.queue.observe(seconds)
      metrics.cachedTokens.inc(cached_tokens)
    },
    firstToken: (seconds) => metrics.firstToken.observe(seconds),
    perToken: (seconds) => metrics.perToken.observe(seconds),
    spans: (outcome, count) => metrics.spans.inc({ outcome }, count),
  }
}
