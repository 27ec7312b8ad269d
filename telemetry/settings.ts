// OpenTelemetry's own variables that decide whether and how spans are exported. Its exporter reads the rest by itself:
// headers, timeout, compression, certificates.
/** A bad variable; the message says what to write. */
export class TracingSettingError extends Error {}

interface TracingSettings {
  sampler: 'always_on' | 'always_off' | 'traceidratio'
  /** Follow the caller's decision where there is one. */
  parent_based: boolean
  ratio: number
  queue_max: number
  batch_max: number
  delay_ms: number
  timeout_ms: number
}

const samplers = [
  'always_on',
  'always_off',
  'traceidratio',
  'parentbased_always_on',
  'parentbased_always_off',
  'parentbased_traceidratio',
]

/** Undefined: no traces. Throws a TracingSettingError. */
export function readTracingSettings(env: NodeJS.ProcessEnv): TracingSettings | undefined {
  const read = (name: string) => env[name]?.trim() || undefined
  const setting = (name: string) => read(`OTEL_EXPORTER_OTLP_TRACES_${name}`) ?? read(`OTEL_EXPORTER_OTLP_${name}`)
  const endpoint = setting('ENDPOINT')
  const exporter = read('OTEL_TRACES_EXPORTER') ?? 'otlp'
  if (!endpoint || exporter === 'none' || read('OTEL_SDK_DISABLED')?.toLowerCase() === 'true') return undefined
  if (exporter !== 'otlp')
    throw new TracingSettingError(`OTEL_TRACES_EXPORTER is '${exporter}': only otlp and none are supported.`)
  if (!/^https?:\/\//.test(endpoint) || !URL.canParse(endpoint))
    throw new TracingSettingError(
      `OTEL_EXPORTER_OTLP_ENDPOINT is '${endpoint}': write the address of a collector, such as http://localhost:4318.`,
    )
  const protocol = setting('PROTOCOL') ?? 'http/protobuf'
  if (protocol !== 'http/protobuf')
    throw new TracingSettingError(
      `OTEL_EXPORTER_OTLP_PROTOCOL is '${protocol}': only http/protobuf is supported, at a collector's port 4318.`,
    )
  const sampler = read('OTEL_TRACES_SAMPLER') ?? 'parentbased_always_on'
  if (!samplers.includes(sampler))
    throw new TracingSettingError(`OTEL_TRACES_SAMPLER is '${sampler}': write one of ${samplers.join(', ')}.`)
  const ratio = Number(read('OTEL_TRACES_SAMPLER_ARG') ?? 1)
  if (!(ratio >= 0 && ratio <= 1))
    throw new TracingSettingError(
      `OTEL_TRACES_SAMPLER_ARG is '${env.OTEL_TRACES_SAMPLER_ARG}': write a share from 0 to 1.`,
    )
  const number = (name: string, fallback: number) => {
    const value = Number(read(name) ?? fallback)
    if (Number.isInteger(value) && value > 0 && value <= 10_000_000) return value
    throw new TracingSettingError(`${name} is '${env[name]}': write a whole number above 0.`)
  }
  return {
    sampler: sampler.replace('parentbased_', '') as TracingSettings['sampler'],
    parent_based: sampler.startsWith('parentbased_'),
    ratio,
    queue_max: number('OTEL_BSP_MAX_QUEUE_SIZE', 2048),
    batch_max: number('OTEL_BSP_MAX_EXPORT_BATCH_SIZE', 512),
    delay_ms: number('OTEL_BSP_SCHEDULE_DELAY', 5000),
    timeout_ms: number('OTEL_BSP_EXPORT_TIMEOUT', 30_000),
  }
}
