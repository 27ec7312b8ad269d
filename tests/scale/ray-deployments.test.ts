// Deployments that scale on a real Ray Serve, through the API: requests by the gateway, to zero and back, another model
// for the name, the head of the cluster killed and restarted, and somebody else's application beside ours.
import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { readFileSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { after, before, test } from 'node:test'
import OpenAI from 'openai'
import { until } from '../support/client.ts'
import { rayTest } from '../support/ray.ts'
import type { TestApp } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'
import { question, type RayService, startRayService } from './support/ray-service.ts'

const engines = /engine\/main\.ts/
let service: RayService
let cluster: RayService['cluster']
let app: TestApp
let model: string

before(async () => {
  if (rayTest.skip) return
  service = await startRayService({
    ray: { head_cpus: 4 },
    settings: { TUNERY_RAY_NODE: process.execPath, TUNERY_REPLICA_CORES: '1' },
  })
  ;({ cluster, app, model } = service)
})
after(() => service?.stop())

const scaling = (more: object = {}) => ({
  instance_type: 'ray',
  scaling: { min_replicas: 1, max_replicas: 2, scale_up_cooldown: '1s', scale_down_cooldown: '10m', ...more },
})
const put = (body: object, name = 'colours') => app.api('PUT', `/deployments/${name}/scaling`, body)
const get = async () => (await app.api('GET', '/deployments/colours/scaling')).body
test(
  'a deployment on Ray answers with its own weights, in pieces too, and shows what Serve says',
  rayTest,
  async () => {
    await service.addTheirs()
    assert.equal((await app.api('POST', '/deployments', { name: 'colours', model })).status, 201)
    const here = await service.ask('colours')
    assert.equal(here.status, 200, JSON.stringify(here.body))
    const set = await put(scaling())
    assert.equal(set.status, 200, JSON.stringify(set.body))
    assert.ok(set.body.instance_types.some((each: { name: string }) => each.name === 'ray'))
    const there = await service.ask('colours')
    assert.equal(there.status, 200, JSON.stringify(there.body))
    assert.equal(there.text, here.text)
    assert.match(there.weights!, new RegExp(`; adapter=${model} sha256:`))
    assert.equal(there.body.model, 'colours')
    let text = ''
    let chunks = 0
    for await (const chunk of await new OpenAI({ baseURL: app.url, apiKey: app.key }).chat.completions.create({
      ...question('colours'),
      stream: true,
    })) {
      text += chunk.choices[0]?.delta.content ?? ''
      chunks++
    }
    assert.equal(text, here.text)
    assert.ok(chunks > 3, 'in pieces')
    assert.equal(cluster.processes(engines).length, 1, 'in the cluster')
    await until('the replica to be shown', async () => {
      const shown = await get()
      return shown.replicas.ready === 1 && shown.replicas.desired === 1 && shown.decisions[0]?.to === 1
    })
    assert.equal(await service.theirs(), 'hello')
    const [name] = await service.ours()
    assert.equal(
      (await fetch(`http://127.0.0.1:${service.port}/${name}/v1/models`)).status,
      401,
      'the gateway is the only door',
    )
  },
)

test('files of models are for replicas alone', rayTest, async () => {
  const { config } = [...(await service.serve.own()).values()][0]!
  const args = config!.args as { base: { url: string; sha256: string }; files_token: string }
  const status = async (url: string, token: string) =>
    (await fetch(url, { headers: { authorization: `Bearer ${token}` } })).status
  assert.equal(await status(args.base.url, args.files_token), 200)
  assert.equal(await status(args.base.url, app.key), 401)
  assert.equal(await status(args.base.url, ''), 401)
  assert.equal(
    await status(args.base.url.replace(encodeURIComponent(model), encodeURIComponent(tiny)), args.files_token),
    401,
  )
  assert.equal(await status(args.base.url.replace(args.base.sha256, '0'.repeat(64)), args.files_token), 404)
})

test('another model for the name: each answer is of the one or the other, none fails', rayTest, async () => {
  let switched = false
  const seen = new Set<string>()
  const asking = (async () => {
    while (!switched) {
      const { status, weights, body } = await service.ask('colours')
      assert.equal(status, 200, JSON.stringify(body))
      seen.add(weights!)
    }
  })()
  const changed = await app.api('PUT', '/deployments/colours', { model: tiny })
  switched = true
  await asking
  assert.equal(changed.status, 200, JSON.stringify(changed.body))
  const { weights } = await service.ask('colours')
  assert.doesNotMatch(weights!, /adapter/)
  assert.ok(
    [...seen].every((each) => each.includes(`adapter=${model}`) || each === weights),
    [...seen].join(' | '),
  )
  await until('the former application to be removed', async () => (await service.ours()).length === 1)
  assert.equal((await app.api('PUT', '/deployments/colours', { model })).status, 200)
  assert.match((await service.ask('colours')).weights!, /adapter/)
  await until('the former application to be removed', async () => (await service.ours()).length === 1)
})

test('to zero without requests, and back with the first', rayTest, async () => {
  assert.equal((await put(scaling({ min_replicas: 0, scale_down_cooldown: '2s' }))).status, 200)
  await until('no replica', async () => {
    const { replicas } = await get()
    return replicas.items.length === 0 && cluster.processes(engines).length === 0
  })
  const back = await service.ask('colours')
  assert.equal(back.status, 200, JSON.stringify(back.body))
  assert.match(back.weights!, /adapter/)
  assert.equal((await put(scaling())).status, 200)
})

test(
  'the head is away: said, and nothing lost; restarted without applications: they are written again',
  rayTest,
  async () => {
    await cluster.killHead()
    const refused = await put(scaling({ max_replicas: 3 }))
    assert.equal(refused.status, 503, JSON.stringify(refused.body))
    assert.match(refused.body.error.message, /TUNERY_RAY_ADDRESS.*Try again/)
    const away = await service.ask('colours')
    assert.equal(away.status, 503)
    assert.match(JSON.stringify(away.body), /Ray cluster .*is away/)
    assert.equal((await get()).scaling.max_replicas, 2, 'as before')
    await cluster.startHead()
    await until('the name to answer again', async () => (await service.ask('colours')).status === 200)
    assert.match((await service.ask('colours')).weights!, /adapter/)
  },
)

test('an adapter with a changed record never answers, and answers again once it is right', rayTest, async () => {
  assert.equal((await app.api('DELETE', '/deployments/colours/scaling')).status, 200)
  await until('its application to be gone', async () => (await service.ours()).length === 0)
  const file = path.join(app.dataDir, 'models', model, 'adapter.gguf')
  const right = readFileSync(file)
  const weak = Buffer.from(right)
  const key = 'adapter.lora.alpha'
  weak.writeFloatLE(1, weak.indexOf(key) + key.length + 4)
  const recorded = async (bytes: Buffer) => {
    writeFileSync(file, bytes)
    const gguf_sha256 = createHash('sha256').update(bytes).digest('hex')
    await app.db
      .transaction()
      .execute((trx) => trx.updateTable('models').set({ gguf_sha256 }).where('id', '=', model).execute())
  }
  await recorded(weak)
  assert.equal((await put(scaling())).status, 200)
  const refused = await service.ask('colours')
  assert.equal(refused.status, 503, JSON.stringify(refused.body))
  assert.match(JSON.stringify(refused.body), /do not follow the training/)
  await recorded(right)
  assert.equal((await put(scaling())).status, 200)
  const again = await service.ask('colours')
  assert.equal(again.status, 200, JSON.stringify(again.body))
  assert.match(again.weights!, /; adapter=/)
  await until('the refused one to be removed', async () => (await service.ours()).length === 1)
})

test('deletion removes ours alone', rayTest, async () => {
  assert.equal((await service.ours()).length, 1)
  // The head was restarted without it.
  await service.addTheirs()
  assert.equal((await app.api('DELETE', '/deployments/colours')).status, 200)
  await until('our application to be gone', async () => (await service.ours()).length === 0)
  await until('the engines to end', () => cluster.processes(engines).length === 0)
  assert.equal(await service.theirs(), 'hello')
})
