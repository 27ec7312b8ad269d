// Counts what becomes of spans. The SDK's queue drops silently what it cannot hold; here it is dropped before, and
// counted.
import type { SpanExporter, SpanProcessor } from '@opentelemetry/sdk-trace'

interface Options {
  queue_max: number
  onSpans(outcome: 'exported' | 'failed' | 'dropped', count: number): void
  onProblem(message: string): void
}

interface BoundedExport extends SpanExporter {
  /** Gives a processor with a queue of `queue_max` spans no more than that. */
  guard(processor: SpanProcessor): SpanProcessor
}

const sampled = 1
const success = 0
const quiet_ms = 60_000

export function createBoundedExport(exporter: SpanExporter, { queue_max, onSpans, onProblem }: Options): BoundedExport {
  let queued = 0
  let told_at = Number.NEGATIVE_INFINITY
  return {
    guard: (processor) => ({
      onStart: (span, context) => processor.onStart(span, context),
      onEnd(span) {
        if ((span.spanContext().traceFlags & sampled) === 0) return
        if (queued >= queue_max) return onSpans('dropped', 1)
        queued++
        processor.onEnd(span)
      },
      forceFlush: () => processor.forceFlush(),
      shutdown: () => processor.shutdown(),
    }),
    export(spans, done) {
      queued -= spans.length
      exporter.export(spans, (result) => {
        const ok = result.code === success
        onSpans(ok ? 'exported' : 'failed', spans.length)
        if (!ok && performance.now() - told_at >= quiet_ms) {
          told_at = performance.now()
          onProblem(result.error?.message ?? 'the collector refused them')
        }
        done(result)
      })
    },
    shutdown: () => exporter.shutdown(),
    forceFlush: async () => exporter.forceFlush?.(),
  }
}
