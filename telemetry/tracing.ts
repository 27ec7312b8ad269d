// Traces, by OpenTelemetry's SDK. It is loaded only where the environment names a collector; elsewhere there is no
// span.
import type { Context } from '@opentelemetry/api'
import { createBoundedExport } from './bounded-export.ts'
import { readTracingSettings } from './settings.ts'

export type Attributes = Record<string, string | number | boolean>
type SpanKind = 'internal' | 'server' | 'client' | 'consumer'

interface SpanOptions {
  kind?: SpanKind
  attributes?: Attributes
  /** When it began, by performance.now(). Default: now. */
  at?: number | undefined
}

/** An operation that has begun. It is exported when it has ended. */
export interface Span {
  readonly trace_id: string
  /** W3C trace context, for the next process. */
  headers(): Record<string, string>
  child(name: string, options?: SpanOptions): Span
  set(attributes: Attributes): void
  /** A moment of the operation, such as the first token. */
  event(name: string, attributes?: Attributes): void
  /**
   * Only the first call counts. `error` marks it as failed, by the code or the class of the error: a message may repeat
   * what a user wrote. `at`: by performance.now().
   */
  end(options?: { error?: unknown; at?: number | undefined }): void
}

type Headers = Record<string, string | string[] | undefined>

export interface Tracing {
  /** Begins a span: within the trace of a request or a stored traceparent if that is valid, else in a new one. */
  start(name: string, options: SpanOptions & { parent?: Headers }): Span
  /** Exports what has ended, within two seconds. */
  close(): Promise<void>
}

interface Options {
  /** Name of the service unless OTEL_SERVICE_NAME says another. */
  service: string
  version: string
  /** Counts spans: exported, failed, dropped. */
  onSpans(outcome: 'exported' | 'failed' | 'dropped', count: number): void
  /** The collector cannot be reached, or refuses spans; at most once a minute. */
  onProblem(message: string): void
}

const close_ms = 2000
/** Longer texts, such as names that clients made up, are cut. */
const attribute_characters_max = 256

/**
 * Reads the environment of the process, as the SDK's exporter does. Undefined without a collector. Throws a
 * TracingSettingError for a bad setting.
 */
export async function createTracing({ service, version, onSpans, onProblem }: Options): Promise<Tracing | undefined> {
  const settings = readTracingSettings(process.env)
  if (!settings) return undefined
  const [api, core, sdk, resources, { OTLPTraceExporter }] = await Promise.all([
    import('@opentelemetry/api'),
    import('@opentelemetry/core'),
    import('@opentelemetry/sdk-trace'),
    import('@opentelemetry/resources'),
    import('@opentelemetry/exporter-trace-otlp-proto'),
  ])
  const { trace, ROOT_CONTEXT, SpanKind, SpanStatusCode, defaultTextMapGetter, defaultTextMapSetter } = api
  const { sampler: name, ratio, queue_max, batch_max, delay_ms, timeout_ms } = settings
  const root =
    name === 'always_off'
      ? new sdk.AlwaysOffSampler()
      : name === 'traceidratio'
        ? new sdk.TraceIdRatioBasedSampler(ratio)
        : new sdk.AlwaysOnSampler()
  const exporter = createBoundedExport(new OTLPTraceExporter(), { queue_max, onSpans, onProblem })
  const batches = new sdk.BatchSpanProcessor({
    exporter,
    maxQueueSize: queue_max,
    maxExportBatchSize: Math.min(batch_max, queue_max),
    scheduledDelayMillis: delay_ms,
    exportTimeoutMillis: timeout_ms,
  })
  const provider = new sdk.TracerProvider({
    // What the environment says wins over our own names.
    resource: resources
      .resourceFromAttributes({ 'service.name': service, 'service.version': version, 'process.pid': process.pid })
      .merge(resources.detectResources({ detectors: [resources.serviceInstanceIdDetector, resources.envDetector] })),
    sampler: settings.parent_based ? new sdk.ParentBasedSampler({ root }) : root,
    spanLimits: { attributeValueLengthLimit: attribute_characters_max },
    spanProcessors: [exporter.guard(batches)],
  })
  const tracer = provider.getTracer('tunery', version)
  const propagator = new core.W3CTraceContextPropagator()
  const kinds = {
    internal: SpanKind.INTERNAL,
    server: SpanKind.SERVER,
    client: SpanKind.CLIENT,
    consumer: SpanKind.CONSUMER,
  }

  function headersOf(context: Context): Record<string, string> {
    const carrier: Record<string, string> = {}
    propagator.inject(context, carrier, defaultTextMapSetter)
    return carrier
  }

  /** A span that is not sampled: it stands for all within it, and says so to the next process. */
  function unsampled(trace_id: string, context: Context): Span {
    const span: Span = {
      trace_id,
      headers: () => headersOf(context),
      child: () => span,
      set() {},
      event() {},
      end() {},
    }
    return span
  }

  function begin(context: Context, name: string, options: SpanOptions): Span {
    const { kind = 'internal', attributes, at = performance.now() } = options
    const span = tracer.startSpan(
      name,
      { kind: kinds[kind], startTime: at, ...(attributes && { attributes: { ...attributes } }) },
      context,
    )
    const parent = trace.setSpan(ROOT_CONTEXT, span)
    if (!span.isRecording()) return unsampled(span.spanContext().traceId, parent)
    let ended = false
    return {
      trace_id: span.spanContext().traceId,
      headers: () => headersOf(parent),
      child: (name, options = {}) => begin(parent, name, options),
      set: (attributes) => void span.setAttributes(attributes),
      event: (name, attributes = {}) => void span.addEvent(name, attributes, performance.now()),
      end({ error, at = performance.now() } = {}) {
        if (ended) return
        ended = true
        if (error !== undefined) {
          const { code, name = 'Error' } = error as { code?: unknown; name?: string }
          span.setAttribute('error.type', String(code ?? name))
          span.setStatus({ code: SpanStatusCode.ERROR })
        }
        span.end(at)
      },
    }
  }

  return {
    start: (name, { parent, ...options }) =>
      begin(parent ? propagator.extract(ROOT_CONTEXT, parent, defaultTextMapGetter) : ROOT_CONTEXT, name, options),
    async close() {
      const timeout = new Promise<void>((resolve) => void setTimeout(resolve, close_ms).unref())
      await Promise.race([provider.shutdown().catch(() => {}), timeout])
    },
  }
}
