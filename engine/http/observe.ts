// What is measured of one generation, and its spans: queue, prefill, decode.
import type { Span } from '../../telemetry/tracing.ts'
import type { GenerationEvents } from '../batching/generation.ts'
import type { Metrics } from './metrics.ts'

/** The events of a generation, measured on their way to `events`. `span`: that of its request, if it is traced. */
export function observeGeneration(
  events: GenerationEvents,
  metrics: Metrics,
  span: Span | undefined,
): GenerationEvents {
  const submitted_ms = performance.now()
  let first_ms: number | undefined
  /** The stage that it is in. */
  let stage = span?.child('queue', { at: submitted_ms })
  return {
    onStart(start) {
      metrics.queued(start.queue_ms / 1000, start.cached_tokens)
      // A generation in the background may lose its slot and start again.
      stage?.end()
      stage = span?.child('prefill', { attributes: { 'tunery.cached_tokens': start.cached_tokens } })
      events.onStart(start)
    },
    onFirstToken() {
      first_ms = performance.now()
      metrics.firstToken((first_ms - submitted_ms) / 1000)
      stage?.end()
      stage = span?.child('decode', { at: first_ms })
    },
    onText: events.onText,
    onEnd(end) {
      if (first_ms !== undefined && end.completion_tokens > 1)
        metrics.perToken((performance.now() - first_ms) / 1000 / (end.completion_tokens - 1))
      stage?.set({ 'gen_ai.usage.output_tokens': end.completion_tokens, 'tunery.finish': end.finish_reason })
      stage?.end()
      events.onEnd(end)
    },
    onError(error) {
      stage?.end({ error })
      events.onError(error)
    },
    onAbandoned() {
      stage?.set({ 'tunery.client_left': true })
      stage?.end()
    },
  }
}
