// Load balancing over several upstreams (real engines) of one model: choice of a replica, crashes, queueing.
import assert from 'node:assert/strict'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { allowed } from '../support/allowed-time.ts'
import { until } from '../support/client.ts'
import { startApp, type TestApp } from '../support/service.ts'
import { type Streamed, stream } from '../support/streams.ts'
import { tiny, tinyModelsDir } from '../support/tiny.ts'
import { startTcpEngine, type TcpEngine } from '../support/upstream.ts'

const there = 'tiny-there'
const gguf = path.join(tinyModelsDir(), tiny, 'model.gguf')
let app: TestApp
let engines: TcpEngine[]
before(async () => {
  engines = await Promise.all([startTcpEngine(there, gguf), startTcpEngine(there, gguf), startTcpEngine(there, gguf)])
  const [first, second, third] = engines.map(({ port }) => `http://127.0.0.1:${port}`)
  const entry = { kind: 'openai', upstream_model: there }
  app = await startApp({
    TUNERY_MAX_WAITING: '1',
    TUNERY_UPSTREAMS: JSON.stringify([
      { ...entry, model: 'up/two', url: first },
      { ...entry, model: 'up/two', url: `${second}/v1/` },
      { ...entry, model: 'up/one', url: third, max_concurrent: 1 },
    ]),
  })
})
after(async () => {
  await app.stop()
  await Promise.all(engines.map((engine) => engine.kill()))
})

const messages = [{ role: 'user', content: 'Say something.' }]
const body = (model: string, fields: object = {}) => ({ model, messages, temperature: 0, max_tokens: 4, ...fields })
const chat = (model: string, fields: object = {}) => app.api('POST', '/chat/completions', body(model, fields))
const streamed = (model: string, fields: object = {}) =>
  stream(`${app.url}/chat/completions`, app.key, body(model, { stream: true, ...fields }))
const long = { max_tokens: 1900 }
const running = async (engine: TcpEngine) =>
  (await engine.metric('sequences_running')) + (await engine.metric('sequences_waiting'))

test('a model that only an upstream serves is listed, and responses have the client’s model name', async () => {
  const { data } = (await app.api('GET', '/models')).body
  assert.equal(data.find(({ id }: { id: string }) => id === 'up/two').status, 'loaded')
  const full = await chat('up/two')
  assert.equal(full.status, 200, JSON.stringify(full.body))
  assert.equal(full.body.model, 'up/two')
  const { events, done, text } = await streamed('up/two').result
  assert.ok(done && events.length > 2)
  assert.ok(!text.includes(there))
  for (const event of events) assert.equal(event.model, 'up/two')
  assert.ok(
    events.every(({ choices }) => choices.length === 1),
    'usage that the client did not request is not sent',
  )
  const withUsage = await streamed('up/two', { stream_options: { include_usage: true } }).result
  assert.deepEqual(withUsage.events.at(-1).choices, [])
  assert.equal(withUsage.events.at(-1).usage.completion_tokens, 4)
  assert.equal(withUsage.events.at(-1).model, 'up/two')
  assert.equal((await app.api('POST', '/deployments', { model: 'up/two', name: 'far' })).status, 201)
  assert.equal((await chat('far')).body.model, 'far')
})

test('requests go to the replica with the fewest requests', async () => {
  const busy = streamed('up/two', long)
  await busy.untilBytes(1)
  const [busyEngine, idleEngine] =
    (await running(engines[0]!)) > 0 ? [engines[0]!, engines[1]!] : [engines[1]!, engines[0]!]
  const before = await idleEngine.metric('generation_tokens_total')
  for (let round = 0; round < 3; round++) await chat('up/two', { max_tokens: 5 })
  assert.equal((await idleEngine.metric('generation_tokens_total')) - before, 15)
  busy.hangUp()
  await until('the slot to be free', async () => (await running(busyEngine)) === 0)
})

test('a disconnect frees the request’s slots in the upstream within half a second, also for a batch', async () => {
  const one = streamed('up/two', long)
  await one.untilBytes(1)
  const batch = stream(`${app.url}/chat/completions/batch`, app.key, {
    ...body('up/two', long),
    requests: Array(20).fill({}),
  })
  const all = async () => (await running(engines[0]!)) + (await running(engines[1]!))
  await until('all to be running', async () => (await all()) === 17)
  one.hangUp()
  batch.hangUp()
  const hungUp_at = performance.now()
  await until('nothing to run there', async () => (await all()) === 0)
  assert.ok(performance.now() - hungUp_at < allowed(500), `${performance.now() - hungUp_at} ms`)
})

test('a full queue refuses requests with Retry-After; a queued request is served and reports its wait', async () => {
  const holder = streamed('up/one', long)
  await holder.untilBytes(1)
  const waiter = streamed('up/one')
  let refused: Awaited<ReturnType<typeof chat>> | undefined
  await until('the queue to be full', async () => {
    const tried = stream(`${app.url}/chat/completions`, app.key, body('up/one'))
    const answer = await Promise.race([
      tried.result,
      new Promise<undefined>((resolve) => setTimeout(() => resolve(undefined), 200)),
    ])
    tried.hangUp()
    if (answer?.status !== 503) return false
    refused = await chat('up/one')
    return true
  })
  assert.equal(refused!.status, 503)
  assert.equal(refused!.body.error.code, 'overloaded')
  assert.match(refused!.headers.get('retry-after')!, /^[1-9]\d*$/)
  holder.hangUp()
  const served = await waiter.result
  assert.ok(served.done, served.text)
  assert.ok(Number(/queue;dur=([\d.]+)/.exec(String(served.headers['server-timing']))![1]) > 1)
})

test('when a replica dies, unstarted responses are retried and started streams end with an error', async () => {
  const [victim] = engines
  const results: Streamed[] = []
  let stop = false
  async function worker() {
    while (!stop) results.push(await streamed('up/two', { max_tokens: 200 }).result)
  }
  const workers = Array.from({ length: 6 }, worker)
  await until('both to work', async () => (await running(engines[0]!)) > 0 && (await running(engines[1]!)) > 0)
  // While stopped it accepts requests and answers none: these have no response byte when it dies.
  victim!.process.kill('SIGSTOP')
  const late = Array.from({ length: 8 }, () => streamed('up/two', { max_tokens: 200 }).result)
  let pending = late.length
  for (const request of late) request.finally(() => pending--)
  const atStop = results.length
  await until('the other replica to overtake it', () => results.length > atStop + 20)
  assert.ok(pending > 0)
  await victim!.kill()
  for (const answer of await Promise.all(late)) assert.ok(answer.done, answer.text)
  const atDeath = results.length
  await until('more responses', () => results.length > atDeath + 12)
  engines[0] = await startTcpEngine(there, gguf, victim!.port)
  await until('the new one to be used', async () => (await engines[0]!.metric('generation_tokens_total')) > 0)
  stop = true
  await Promise.all(workers)
  const broken = results.filter(({ done }) => !done)
  assert.ok(broken.length <= 6, `${broken.length} streams broke`)
  for (const result of results) {
    assert.equal(result.status, 200, result.text)
    if (result.done) assert.equal(result.events.at(-1).choices[0].finish_reason, 'length')
    else {
      assert.equal(result.events.at(-1).error.code, 'upstream_failed')
      assert.ok(result.events.length > 1, 'it had begun')
    }
  }
})

test('with all replicas down requests fail at once, and succeed when one is back', async () => {
  const { port } = engines[2]!
  await engines[2]!.kill()
  const down = await chat('up/one')
  assert.equal(down.status, 503)
  assert.equal(down.body.error.code, 'engine_unavailable')
  assert.ok(down.headers.get('retry-after'))
  assert.equal((await app.api('GET', '/models/up/one')).body.status, 'not_loaded')
  engines[2] = await startTcpEngine(there, gguf, port)
  assert.equal((await chat('up/one')).status, 200, 'an only replica is tried before its probe succeeds')
  await until('the status to be updated', async () => (await app.api('GET', '/models/up/one')).body.status === 'loaded')
})
