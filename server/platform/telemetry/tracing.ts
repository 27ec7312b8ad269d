// Traces, for the rest of the server.
export { TracingSettingError } from '../../../telemetry/settings.ts'
export { type Attributes, createTracing, type Span, type Tracing } from '../../../telemetry/tracing.ts'
