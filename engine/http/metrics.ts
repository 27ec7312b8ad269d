// Prometheus metrics of the engine.
import { Counter, Gauge, Histogram, Registry } from 'prom-client'
import type { StepStats } from '../batching/runner.ts'
import type { SchedulerCounts } from '../batching/scheduler.ts'

export type Metrics = {
  text(): Promise<string>
  request(route: string, status: number): void
  step(stats: StepStats): void
}

export function createMetrics(
  counts: () => SchedulerCounts,
  models: () => { bases: number; adapters: number },
): Metrics {
  const registry = new Registry()
  const registers = [registry]
  const requests = new Counter({
    name: 'tunery_engine_requests_total',
    help: 'Answered requests.',
    labelNames: ['route', 'status'],
    registers,
  })
  const promptTokens = new Counter({
    name: 'tunery_engine_prompt_tokens_total',
    help: 'Prompt tokens computed, without those reused from the KV cache.',
    registers,
  })
  const outputTokens = new Counter({
    name: 'tunery_engine_generation_tokens_total',
    help: 'Tokens generated.',
    registers,
  })
  const failures = new Counter({ name: 'tunery_engine_decode_failures_total', help: 'Decodes that failed.', registers })
  const decode = new Histogram({
    name: 'tunery_engine_decode_seconds',
    help: 'Time of one decode step.',
    buckets: [0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2],
    registers,
  })
  const gauge = (name: string, help: string, read: () => number) =>
    new Gauge({
      name: `tunery_engine_${name}`,
      help,
      registers,
      collect() {
        this.set(read())
      },
    })
  gauge('sequences_running', 'Sequences being computed.', () => counts().running)
  gauge('sequences_waiting', 'Requests waiting for a slot.', () => counts().waiting)
  gauge('lanes', 'Contexts in memory.', () => counts().runners)
  gauge('lane_bytes', 'Approximate memory of all contexts.', () => counts().runner_bytes)
  gauge('base_models', 'Base models loaded.', () => models().bases)
  gauge('adapters', 'Adapters loaded.', () => models().adapters)
  gauge('process_cpu_ms', 'Processor time of the process, all threads.', () =>
    Math.round((process.cpuUsage().user + process.cpuUsage().system) / 1000),
  )
  gauge('resident_bytes', 'Memory of the process.', () => process.memoryUsage.rss())
  return {
    text: () => registry.metrics(),
    request: (route, status) => requests.inc({ route, status: String(status) }),
    step: (stats) => {
      promptTokens.inc(stats.prompt_tokens)
      outputTokens.inc(stats.output_tokens)
      decode.observe(stats.seconds)
      if (stats.failed) failures.inc()
    },
  }
}
