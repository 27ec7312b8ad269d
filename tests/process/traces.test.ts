// Traces from a request to the engine and from a job to its trainer: the real exporter, and a collector that decodes.
import assert from 'node:assert/strict'
import { existsSync, readFileSync, rmSync } from 'node:fs'
import http from 'node:http'
import type { AddressInfo } from 'node:net'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { client, colourRows, until } from '../support/client.ts'
import { type CollectedSpan, type Collector, isConnected, pathTo, startCollector } from '../support/otlp-collector.ts'
import { type DataFolder, dataFolder, type RunningServer } from '../support/server.ts'
import { stream } from '../support/streams.ts'
import { tiny } from '../support/tiny.ts'

let collector: Collector
let folder: DataFolder
let server: RunningServer
let key: string
let log: string
/** A server of a model that keeps the headers of its requests. */
let upstream: http.Server
const upstreamHeaders: http.IncomingHttpHeaders[] = []
before(async () => {
  collector = await startCollector()
  upstream = http.createServer((request, response) => {
    if (request.method === 'POST') upstreamHeaders.push(request.headers)
    request.resume().on('end', () => {
      response.writeHead(request.method === 'POST' ? 400 : 200, { 'content-type': 'application/json' })
      response.end(JSON.stringify({ object: 'list', data: [{ id: 'far' }], error: { message: 'no', type: 'x' } }))
    })
  })
  await new Promise<void>((resolve) => upstream.listen(0, '127.0.0.1', resolve))
  const { port } = upstream.address() as AddressInfo
  log = path.join(process.env.TMPDIR ?? '/tmp', `tunery-traces-${process.pid}.log`)
  folder = dataFolder(
    'traces',
    {
      TUNERY_LOG_LEVEL: 'info',
      TUNERY_REQUEST_LOG: 'all',
      OTEL_EXPORTER_OTLP_ENDPOINT: collector.url,
      OTEL_EXPORTER_OTLP_HEADERS: 'x-collector-key=secret-of-the-collector',
      OTEL_BSP_SCHEDULE_DELAY: '100',
      TUNERY_UPSTREAMS: JSON.stringify([{ model: 'far', url: `http://127.0.0.1:${port}`, kind: 'openai' }]),
      OTEL_RESOURCE_ATTRIBUTES: 'deployment.environment=test',
    },
    { log },
  )
  server = await folder.start()
  key = folder.key()
})
after(async () => {
  folder.remove()
  rmSync(log)
  upstream.close()
  await collector.close()
})

const caller = { trace_id: '4bf92f3577b34da6a3ce929d0e0e4736', span_id: '00f067aa0ba902b7' }
const traceparent = `00-${caller.trace_id}-${caller.span_id}-01`
const secretPrompt = 'The password of the vault is swordfish.'
const messages = [{ role: 'user', content: secretPrompt }]
const api = () => client(server.url, key).api
/** The spans of a trace, once one of this name has come. */
async function traceWith(trace_id: string, name: string): Promise<CollectedSpan[]> {
  await until(`a span ${name}`, () => collector.of(trace_id).some((span) => span.name === name))
  return collector.of(trace_id)
}
const named = (spans: CollectedSpan[], name: string) => spans.find((span) => span.name === name)!
const logLines = () =>
  readFileSync(log, 'utf8')
    .split('\n')
    .filter((line) => line.startsWith('{'))
    .map((line) => JSON.parse(line) as Record<string, unknown>)

test('one connected trace from the caller through the gateway to the decoding in the engine', async () => {
  const body = { model: tiny, messages, max_tokens: 4, temperature: 0, stream: true }
  const response = await fetch(`${server.url}/chat/completions`, {
    method: 'POST',
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json', traceparent },
    body: JSON.stringify(body),
  })
  assert.equal(response.status, 200)
  await response.text()
  const request_id = response.headers.get('x-request-id')!
  await traceWith(caller.trace_id, 'decode')
  const spans = await traceWith(caller.trace_id, 'POST /chat/completions')
  assert.ok(isConnected(spans, caller.span_id), JSON.stringify(spans.map(({ name, parent_id }) => [name, parent_id])))
  assert.deepEqual(pathTo(spans, named(spans, 'decode')), [
    'POST /chat/completions',
    'call replica',
    'POST /v1/chat/completions',
    'decode',
  ])
  for (const name of ['resolve model', 'wait for replica', 'load model', 'queue', 'prefill'])
    assert.ok(named(spans, name), name)
  const root = named(spans, 'POST /chat/completions')
  assert.equal(root.parent_id, caller.span_id)
  assert.equal(root.attributes['http.response.status_code'], 200)
  assert.equal(root.attributes['tunery.request_id'], request_id)
  assert.equal(root.attributes['gen_ai.usage.output_tokens'], 4)
  assert.equal(named(spans, 'decode').attributes['gen_ai.usage.output_tokens'], 4)
  assert.deepEqual(
    named(spans, 'call replica').events.map(({ name }) => name),
    ['first_token'],
  )
  assert.deepEqual([...new Set(spans.map(({ service }) => service))].sort(), ['tunery', 'tunery-engine'])
  for (const span of spans) assert.ok(span.start_ms >= root.start_ms - 5 && span.end_ms <= root.end_ms + 50, span.name)
  // Its line in the log has both ids.
  const line = logLines().find((logLine) => logLine.request_id === request_id && logLine.msg === 'request')!
  assert.deepEqual([line.trace_id, line.route, line.status], [caller.trace_id, '/chat/completions', 200])
})

test('a malformed traceparent begins a new trace, and a caller that does not sample is followed', async () => {
  const get = (header: string) =>
    fetch(`${server.url}/models`, { headers: { authorization: `Bearer ${key}`, traceparent: header } })
  for (const bad of [
    '',
    'nonsense',
    `00-${'0'.repeat(32)}-${caller.span_id}-01`,
    `ff-${'a'.repeat(32)}-${'b'.repeat(16)}-01`,
  ])
    assert.equal((await get(bad)).status, 200)
  const unsampled = 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'
  assert.equal((await get(`00-${unsampled}-${caller.span_id}-00`)).status, 200)
  await until('their spans', () => collector.spans.filter(({ name }) => name === 'GET /models').length === 4)
  assert.ok(collector.spans.every(({ name, parent_id }) => name !== 'GET /models' || parent_id === ''))
  assert.deepEqual(collector.of(unsampled), [])
})

test('an upstream gets the trace, with the span that calls it', async () => {
  const trace_id = 'cccccccccccccccccccccccccccccccc'
  const header = { traceparent: `00-${trace_id}-${caller.span_id}-01`, tracestate: 'vendor=1' }
  assert.equal((await api()('POST', '/chat/completions', { model: 'far', messages }, header)).status, 400)
  const spans = await traceWith(trace_id, 'POST /chat/completions')
  const [sent] = upstreamHeaders
  assert.equal(sent!.traceparent, `00-${trace_id}-${named(spans, 'call replica').span_id}-01`)
  assert.equal(sent!.tracestate, 'vendor=1')
  assert.ok(named(spans, 'call replica').failed)
})

test('a failure is marked by its code; a client that leaves ends its trace', async () => {
  const missing = await api()('POST', '/chat/completions', { model: 'nobody', messages })
  assert.equal(missing.status, 404)
  await until('the failed span', () =>
    collector.spans.some(
      ({ name, failed, attributes }) =>
        name === 'resolve model' && failed && attributes['error.type'] === 'model_not_found',
    ),
  )
  const leaving = stream(`${server.url}/chat/completions`, key, {
    model: tiny,
    messages,
    max_tokens: 2000,
    stream: true,
  })
  await leaving.untilBytes(1)
  leaving.hangUp()
  await until('its span', () =>
    collector.spans.some(
      ({ name, attributes }) => name === 'POST /chat/completions' && attributes['tunery.client_left'] === true,
    ),
  )
})

test('a job is one trace with the request that created it: attempt, phases of the trainer, evaluations', async () => {
  const { api: call, upload, events } = client(server.url, key)
  const dataset = (await upload(colourRows(16))).body.id
  const trace_id = 'bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb'
  const config = { training_config: { epochs: 2, batch_size: 8 } }
  const created = await call(
    'POST',
    '/fine-tuning/jobs',
    { model_id: tiny, dataset_id: dataset, config },
    { traceparent: `00-${trace_id}-${caller.span_id}-01` },
  )
  assert.equal(created.status, 201, JSON.stringify(created.body))
  const { id } = created.body
  const file = path.join(folder.dataDir, 'runs', id, '1', 'trainer.log')
  await until('the trainer to have begun its log', () => existsSync(file) && readFileSync(file, 'utf8').includes('\n'))
  const [first] = readFileSync(file, 'utf8').split('\n')
  const { job, attempt, trace_id: logged } = JSON.parse(first!)
  assert.deepEqual([job, attempt, logged], [id, 1, trace_id])
  for await (const _ of events(id));
  const spans = await traceWith(trace_id, 'work on job')
  assert.ok(isConnected(spans, caller.span_id))
  const attemptSpan = named(spans, 'work on job')
  assert.deepEqual(pathTo(spans, attemptSpan), ['POST /fine-tuning/jobs', 'work on job'])
  assert.equal(attemptSpan.attributes['tunery.outcome'], 'completed')
  assert.equal(attemptSpan.attributes['tunery.job_id'], id)
  for (const phase of ['starting', 'preparing', 'loading', 'training', 'converting'])
    assert.deepEqual(pathTo(spans, named(spans, `trainer: ${phase}`)).at(-2), 'work on job', phase)
  assert.ok(named(spans, 'record result'))
})

test('the metrics have the same requests and the job, and those of the engine', async () => {
  const text = await (await fetch(new URL('/metrics', server.url))).text()
  const value = (series: string) => {
    const line = text.split('\n').find((candidate) => candidate.startsWith(`${series} `))
    assert.ok(line, `no ${series}`)
    return Number(line.split(' ').at(-1))
  }
  const base = `base="${tiny}"`
  assert.equal(value(`tunery_inference_requests_total{${base},kind="chat",outcome="complete"}`), 1)
  await until('the client that left to be metered', async () =>
    (await (await fetch(new URL('/metrics', server.url))).text()).includes(
      `tunery_inference_requests_total{${base},kind="chat",outcome="client_left"} 1`,
    ),
  )
  assert.ok(value(`tunery_inference_tokens_total{${base},type="completion"}`) >= 4)
  assert.ok(value(`tunery_inference_time_to_first_token_seconds_count{${base}}`) >= 1)
  assert.equal(value(`tunery_inference_time_per_output_token_seconds_count{${base}}`), 1)
  assert.equal(value(`tunery_inference_load_seconds_count{${base}}`), 1)
  assert.equal(value('tunery_job_attempts_total{outcome="completed"}'), 1)
  assert.ok(value('tunery_trained_tokens_total') > 0)
  assert.equal(value('tunery_engine_up'), 1)
  assert.ok(value('tunery_engine_time_to_first_token_seconds_count{engine="shared"}') >= 2)
  assert.ok(
    value('tunery_engine_kv_cache_limit_bytes{engine="shared"}') >
      value('tunery_engine_kv_cache_bytes{engine="shared"}'),
  )
  assert.ok(value('tunery_engine_slots{engine="shared"}') > 0)
  // A name twice would end the scrape.
  const names = [...text.matchAll(/^# TYPE (\S+)/gm)].map(([, name]) => name)
  assert.equal(new Set(names).size, names.length)
})

test('no span and no log line has a prompt, an answer or a key', async () => {
  await until('the header of the operator', () => collector.headers.length > 0)
  for (const headers of collector.headers) assert.equal(headers['x-collector-key'], 'secret-of-the-collector')
  for (const text of [collector.text(), readFileSync(log, 'utf8')])
    for (const secret of [key, 'swordfish', 'Bearer', 'secret-of-the-collector'])
      assert.ok(!text.includes(secret), secret)
  assert.ok(!collector.text().includes(folder.dataDir))
})

test('a collector that refuses or hangs costs no request, and its spans are counted', async () => {
  const counts = async () => {
    const text = await (await fetch(new URL('/metrics', server.url))).text()
    return Object.fromEntries(
      [...text.matchAll(/^tunery_trace_spans_total\{outcome="(\w+)"\} (\d+)$/gm)].map(([, name, count]) => [
        name,
        Number(count),
      ]),
    )
  }
  assert.ok((await counts()).exported! > 0)
  collector.behaviour.status = 400
  const chat = () => api()('POST', '/chat/completions', { model: tiny, messages, max_tokens: 1 })
  assert.equal((await chat()).status, 200)
  await until('failed spans', async () => ((await counts()).failed ?? 0) > 0)
  collector.behaviour.hold = true
  assert.equal((await chat()).status, 200)
  assert.equal(logLines().filter(({ msg }) => msg === 'spans do not reach the collector').length >= 1, true)
  assert.equal(await server.end('SIGTERM'), 0)
})
