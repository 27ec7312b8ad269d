// What decides whether spans are exported, and what becomes of those that the queue cannot hold.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { test } from 'node:test'
import { childEnv } from '../../lib/child-process.ts'
import { root } from '../../lib/root.ts'
import { readTracingSettings, TracingSettingError } from '../../telemetry/settings.ts'
import { createTracing } from '../../telemetry/tracing.ts'
import { startCollector } from '../support/otlp-collector.ts'

const OTEL_EXPORTER_OTLP_ENDPOINT = 'http://127.0.0.1:4318'

test('tracing is off without a collector, and where OpenTelemetry’s variables turn it off', () => {
  for (const env of [
    {},
    { OTEL_EXPORTER_OTLP_ENDPOINT: '' },
    { OTEL_SERVICE_NAME: 'mine' },
    { OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_SDK_DISABLED: 'true' },
    { OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_TRACES_EXPORTER: 'none' },
  ])
    assert.equal(readTracingSettings(env), undefined, JSON.stringify(env))
  assert.equal(readTracingSettings({ OTEL_EXPORTER_OTLP_ENDPOINT })!.queue_max, 2048)
  assert.ok(readTracingSettings({ OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: 'https://collector/v1/traces' }))
})

test('a bad variable says what to write', () => {
  for (const [env, message] of [
    [{ OTEL_EXPORTER_OTLP_ENDPOINT: 'collector:4318' }, /such as http:\/\/localhost:4318/],
    [{ OTEL_EXPORTER_OTLP_PROTOCOL: 'grpc' }, /only http\/protobuf/],
    [{ OTEL_TRACES_EXPORTER: 'zipkin' }, /only otlp and none/],
    [{ OTEL_TRACES_SAMPLER: 'jaeger_remote' }, /parentbased_traceidratio/],
    [{ OTEL_TRACES_SAMPLER_ARG: '10%' }, /from 0 to 1/],
    [{ OTEL_BSP_MAX_QUEUE_SIZE: '-1' }, /whole number/],
  ] as const)
    assert.throws(
      () => readTracingSettings({ OTEL_EXPORTER_OTLP_ENDPOINT, ...env }),
      (error: Error) => error instanceof TracingSettingError && message.test(error.message),
    )
})

test('without a collector nothing of OpenTelemetry is loaded', () => {
  const program = `
    const { createTracing } = await import('./telemetry/tracing.ts')
    const tracing = await createTracing({ service: 'x', version: '1', onSpans() {}, onProblem() {} })
    console.log(tracing === undefined)
    const inspector = await import('node:inspector')
    const session = new inspector.Session()
    session.connect()
    const urls = []
    session.on('Debugger.scriptParsed', ({ params }) => urls.push(params.url))
    session.post('Debugger.enable')
    console.log(urls.filter((url) => url.includes('opentelemetry')).length)`
  const [result, loaded] = execFileSync(process.execPath, ['--input-type=module', '--eval', program], {
    cwd: root,
    encoding: 'utf8',
  }).split('\n')
  assert.equal(result, 'true')
  assert.equal(loaded, '0')
})

test('a full queue drops spans and counts them; the others arrive', async () => {
  const collector = await startCollector()
  const env = {
    OTEL_EXPORTER_OTLP_ENDPOINT: collector.url,
    OTEL_BSP_MAX_QUEUE_SIZE: '10',
    OTEL_BSP_SCHEDULE_DELAY: '60000',
  }
  Object.assign(process.env, env)
  const counts = { exported: 0, failed: 0, dropped: 0 }
  const tracing = await createTracing({
    service: 'test',
    version: '1',
    onSpans: (outcome, count) => {
      counts[outcome] += count
    },
    onProblem: () => {},
  })
  for (const name of Object.keys(env)) delete process.env[name]
  for (let number = 0; number < 1000; number++) tracing!.start(`span ${number}`, {}).end()
  // One batch of ten is being sent, and ten wait.
  assert.equal(counts.dropped, 980)
  await tracing!.close()
  assert.deepEqual(counts, { exported: 20, failed: 0, dropped: 980 })
  assert.equal(collector.spans.length, 20)
  await collector.close()
})

test('children get no variables of traces, whose headers carry keys, but those that export spans', () => {
  const env = { OTEL_EXPORTER_OTLP_HEADERS: 'api-key=1', OTEL_SERVICE_NAME: 'x', TRACEPARENT: '00-1' }
  Object.assign(process.env, env)
  try {
    assert.deepEqual(
      Object.keys(env).filter((name) => childEnv()[name]),
      [],
    )
    assert.deepEqual(
      Object.keys(env).filter((name) => childEnv(/^OTEL_/)[name]),
      Object.keys(env).slice(0, 2),
    )
  } finally {
    for (const name of Object.keys(env)) delete process.env[name]
  }
})
