// The operator's view of the machine and of the accounts' use, on a real service.
import assert from 'node:assert/strict'
import { mkdirSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { after, before, test } from 'node:test'
import type { Machine } from '../../contract/machine.ts'
import { client, until } from '../support/client.ts'
import { startApp, type TestApp } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'
import { startFakeUpstream } from '../support/upstream.ts'

let app: TestApp
let operator: ReturnType<typeof client>
let upstream: Awaited<ReturnType<typeof startFakeUpstream>>
before(async () => {
  upstream = await startFakeUpstream((_path, _body, response) => void response.writeHead(500).end())
  app = await startApp({
    TUNERY_UPSTREAMS: JSON.stringify([{ model: 'their/base', url: upstream.url, kind: 'openai', max_concurrent: 3 }]),
  })
  operator = client(app.url, (await app.services.accounts.createKey('op', 'operator', app.owner.user_id)).key)
})
after(async () => {
  await app.stop()
  upstream.stop()
})

async function look(): Promise<Machine> {
  const { status, body } = await operator.api('GET', '/operator/machine')
  assert.equal(status, 200, JSON.stringify(body))
  return body
}
const ask = (of: Pick<TestApp, 'api'>, body: object = {}) =>
  of.api('POST', '/chat/completions', {
    model: tiny,
    messages: [{ role: 'user', content: 'Say something.' }],
    max_tokens: 4,
    ...body,
  })

test('the engine is shown as it is: stopped, then running with the models that requests loaded', async () => {
  const before = await look()
  assert.deepEqual([before.engine.status, before.engine.pid, before.engine.models], ['stopped', null, []])
  const model = await app.colourModel()
  assert.equal((await ask(app, { model })).status, 200)
  const { engine, memory, cores } = await look()
  assert.equal(engine.status, 'running')
  assert.equal(engine.pid, app.services.enginePid())
  assert.deepEqual(
    engine.models.map(({ id, name, base }) => [id, name, base]),
    [
      [tiny, null, null],
      [model, (await app.api('GET', `/fine-tuning/models/${model}`)).body.name, tiny],
    ],
  )
  for (const { bytes } of engine.models) assert.ok(bytes! > 0)
  assert.ok(engine.memory_bytes! > 1e6 && engine.memory_bytes! < memory.total_bytes)
  assert.ok(memory.available_bytes <= memory.total_bytes && memory.service_bytes > 0)
  assert.ok(cores >= 1)
  const rate = await until('a rate', async () => {
    await ask(app)
    return (await look()).engine.tokens_per_second ?? undefined
  })
  assert.ok(rate > 0)
  assert.ok(!JSON.stringify(await look()).includes(app.dataDir), 'no path of the machine leaks')
})

test('the disk is counted by kind in the background', async () => {
  const file = path.join(app.dataDir, 'exports', 'exp_x', 'big')
  mkdirSync(path.dirname(file), { recursive: true })
  writeFileSync(file, Buffer.alloc(3e6, 1))
  const { disk } = await until('a count', async () => {
    const machine = await look()
    return machine.disk.kinds ? machine : undefined
  })
  const kinds = new Map(disk.kinds!.map(({ kind, bytes }) => [kind, bytes]))
  assert.ok(kinds.has('database') && kinds.has('other'), JSON.stringify(disk.kinds))
  assert.ok(disk.free_bytes <= disk.total_bytes)
  const sorted = disk.kinds!.map(({ bytes }) => bytes)
  assert.deepEqual(
    sorted,
    sorted.toSorted((a, b) => b - a),
  )
})

test('queues and upstreams show what waits, runs and is down', async () => {
  const { replicas } = await look()
  assert.deepEqual(
    replicas.map(({ name, model, up, max_concurrent }) => [name, model, up, max_concurrent]),
    [
      ['engine', null, true, 256],
      [`their/base at ${new URL(upstream.url).host}`, 'their/base', true, 3],
    ],
  )
  upstream.stop()
  assert.equal((await ask(app, { model: 'their/base' })).body.error.code, 'engine_unavailable')
  assert.equal((await look()).replicas[1]!.up, false)
  await app.db
    .transaction()
    .execute((trx) =>
      app.services.queue
        .enqueue(trx, 'of-nobody', 'x', '')
        .then(() => app.services.queue.enqueue(trx, 'of-nobody', 'y', '')),
    )
  await app.services.queue.claim('of-nobody', 'worker')
  const queue = (await look()).queues.find(({ kind }) => kind === 'of-nobody')!
  assert.deepEqual([queue.waiting, queue.running], [1, 1])
  assert.ok(Date.now() - Date.parse(queue.oldest_at!) < 60_000)
})

test('what accounts used today is listed for the operator alone', async () => {
  const used = await ask(app.other, { max_tokens: 7 })
  assert.equal(used.status, 200)
  const { status, body } = await operator.api('GET', '/operator/usage')
  assert.equal(status, 200, JSON.stringify(body))
  const account = body.items.find(({ name }: { name: string }) => name === 'other')
  const { prompt_tokens, completion_tokens } = used.body.usage
  assert.deepEqual(
    [account.requests, account.prompt_tokens, account.completion_tokens],
    [1, prompt_tokens, completion_tokens],
  )
  assert.deepEqual((await operator.api('GET', '/operator/usage?day=2020-01-01')).body.items, [])
  assert.equal((await operator.api('GET', '/operator/usage?day=today')).status, 400)
  for (const route of ['/operator/machine', '/operator/usage']) {
    const refused = await app.other.api('GET', route)
    assert.deepEqual([refused.status, refused.body.error.code], [403, 'insufficient_permissions'])
  }
})
