// What is measured of one generation.
import type { GenerationEvents } from '../batching/generation.ts'
import type { Metrics } from './metrics.ts'

/** The events of a generation, measured on their way to `events`. */
export function observeGeneration(events: GenerationEvents, metrics: Metrics): GenerationEvents {
  const submitted_ms = performance.now()
  let first_ms: number | undefined
  return {
    onStart(start) {
      metrics.queued(start.queue_ms / 1000, start.cached_tokens)
      events.onStart(start)
    },
    onFirstToken() {
      first_ms = performance.now()
      metrics.firstToken((first_ms - submitted_ms) / 1000)
    },
    onText: events.onText,
    onEnd(end) {
      if (first_ms !== undefined && end.completion_tokens > 1)
        metrics.perToken((performance.now() - first_ms) / 1000 / (end.completion_tokens - 1))
      events.onEnd(end)
    },
    onError: events.onError,
  }
}
