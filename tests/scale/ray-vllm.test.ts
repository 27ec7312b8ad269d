// Deployments on Ray Serve LLM, through the API: vLLM (its build for CPUs) as the replica of a base and of an adapter,
// wrong weights, and somebody else's application beside ours.
import assert from 'node:assert/strict'
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import OpenAI from 'openai'
import { createPackageUpload } from '../../server/platform/ray/package.ts'
import { packVllm, vllmApplication } from '../../server/platform/ray/vllm-application.ts'
import { until } from '../support/client.ts'
import { rayVllmTest } from '../support/ray.ts'
import type { TestApp } from '../support/service.ts'
import { tiny, tinyModelsDir } from '../support/tiny.ts'
import { question, type RayService, startRayService } from './support/ray-service.ts'

const scratch = mkdtempSync(path.join(os.tmpdir(), 'tunery-vllm-'))
const vllmProcesses = /EngineCore/
let service: RayService
let cluster: RayService['cluster']
let serve: RayService['serve']
let app: TestApp
let model: string

before(async () => {
  if (rayVllmTest.skip) return
  service = await startRayService({
    ray: {
      head_cpus: 8,
      peer: 'ray-vllm',
      environment: { VLLM_CPU_KVCACHE_SPACE: '1', TUNERY_RUN_DIR: path.join(scratch, 'runs') },
    },
    settings: {
      // A width that vLLM's kernels for CPUs have.
      TUNERY_MODELS_DIR: tinyModelsDir({ head_dim: 32 }),
      TUNERY_RAY_GPUS: 'A10G=22500',
      // As a cluster without GPUs needs it: placed by cores, in the precision of the checkpoint.
      TUNERY_RAY_VLLM: JSON.stringify({
        accelerator_type: null,
        placement_group_config: { bundles: [{ CPU: 1 }] },
        engine_kwargs: { dtype: 'float32', max_model_len: 512, enforce_eager: true },
      }),
    },
  })
  ;({ cluster, serve, app, model } = service)
})
after(async () => {
  await service?.stop()
  rmSync(scratch, { recursive: true, force: true })
})

const policy = { min_replicas: 1, max_replicas: 1, scale_up_cooldown: '1s', scale_down_cooldown: '10m' }
const put = (name: string, scaling: object = policy, instance_type = 'ray:A10G') =>
  app.api('PUT', `/deployments/${name}/scaling`, { instance_type, scaling })
const openai = () => new OpenAI({ baseURL: app.url, apiKey: app.key })

test('vLLM answers as this machine’s engine, for base and adapter, whole and in pieces', rayVllmTest, async () => {
  await service.addTheirs()
  const here = new Map<string, string>()
  for (const [name, served] of [
    ['plain', tiny],
    ['colours', model],
  ] as const) {
    assert.equal((await app.api('POST', '/deployments', { name, model: served })).status, 201)
    const answer = await service.ask(name)
    assert.equal(answer.status, 200, JSON.stringify(answer.body))
    here.set(name, answer.text!)
  }
  assert.notEqual(here.get('plain'), here.get('colours'), 'the adapter changes the answer')

  const unknown = await put('colours', policy, 'ray:H100')
  assert.equal(unknown.status, 400)
  assert.match(unknown.body.error.message, /ray:A10G.*TUNERY_RAY_GPUS/)
  for (const name of ['plain', 'colours']) {
    const set = await put(name)
    assert.equal(set.status, 200, JSON.stringify(set.body))
    assert.ok(set.body.instance_types.some((instanceType: { name: string }) => instanceType.name === 'ray:A10G'))
  }
  for (const name of ['plain', 'colours']) {
    const there = await service.ask(name)
    assert.equal(there.status, 200, JSON.stringify(there.body))
    assert.equal(there.text, here.get(name))
    assert.equal(there.body.model, name)
    assert.ok(there.body.usage.completion_tokens > 0)
    let text = ''
    for await (const chunk of await openai().chat.completions.create({ ...question(name), stream: true }))
      text += chunk.choices[0]?.delta.content ?? ''
    assert.equal(text, here.get(name))
  }
  assert.match((await service.ask('plain')).weights!, new RegExp(`^base=${tiny} sha256:[0-9a-f]{16}$`))
  assert.match((await service.ask('colours')).weights!, new RegExp(`; adapter=${model} sha256:[0-9a-f]{16}$`))
  assert.equal(cluster.processes(vllmProcesses).length, 2, 'two engines of vLLM in the cluster')
  assert.equal(await service.theirs(), 'hello')
})

test(
  'what the client did wrong is told so, and a request without a length gets the room that there is',
  rayVllmTest,
  async () => {
    const wrong = await service.ask('colours', { max_tokens: 100_000 })
    assert.equal(wrong.status, 400, JSON.stringify(wrong.body))
    const { max_tokens: _, ...open } = question('colours')
    const answer = await openai().chat.completions.create(open)
    assert.ok(answer.usage!.completion_tokens > 24)
  },
)

test('the gateway is the only door, and each application has one model', rayVllmTest, async () => {
  for (const name of await service.ours()) {
    const post = (token: string, asked: string) =>
      fetch(`http://127.0.0.1:${service.port}/${name}/v1/chat/completions`, {
        method: 'POST',
        headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' },
        body: JSON.stringify(question(asked)),
      })
    for (const token of ['', app.key])
      for (const asked of ['base', 'base:adapter']) assert.equal((await post(token, asked)).status, 401)
    assert.equal((await fetch(`http://127.0.0.1:${service.port}/${name}/v1/models`)).status, 404)
  }
})

test('a policy changes Serve’s autoscaling, and vLLM runs on', rayVllmTest, async () => {
  const pids = cluster.processes(vllmProcesses)
  const changed = await put('colours', { ...policy, max_replicas: 2, target_requests_per_replica: 3 })
  assert.equal(changed.status, 200, JSON.stringify(changed.body))
  await until('Serve to have it', async () => {
    const configs = [...(await serve.own()).values()].map(({ config }) => JSON.stringify(config))
    return configs.some((config) => /"max_replicas":2/.test(config) && /"target_ongoing_requests":3\b/.test(config))
  })
  assert.equal((await service.ask('colours')).status, 200)
  assert.deepEqual(cluster.processes(vllmProcesses), pids)
  const { replicas } = (await app.api('GET', '/deployments/colours/scaling')).body
  assert.equal(replicas.desired, 1, 'the door is no replica')
})

test('an adapter without its training never answers', rayVllmTest, async () => {
  assert.equal((await app.api('DELETE', '/deployments/colours/scaling')).status, 200)
  await until('its application to be gone', async () => (await service.ours()).length === 1)
  const file = path.join(app.dataDir, 'models', model, 'adapter/adapter_config.json')
  const right = readFileSync(file, 'utf8')
  const recorded = await app.db.selectFrom('models').select('folder_sha256').where('id', '=', model).executeTakeFirst()
  const record = (folder_sha256: string | null) =>
    app.db
      .transaction()
      .execute((trx) => trx.updateTable('models').set({ folder_sha256 }).where('id', '=', model).execute())
  writeFileSync(file, JSON.stringify({ ...JSON.parse(right), lora_alpha: 0 }))
  const changed = await put('colours')
  assert.equal(changed.status, 500, JSON.stringify(changed.body))
  assert.match(changed.body.error!.message, /are not those that the model was made with/)
  // A model of an earlier version has no hash of its folder: its probabilities tell.
  await record(null)
  assert.equal((await put('colours')).status, 200)
  const refused = await service.ask('colours')
  assert.equal(refused.status, 503, JSON.stringify(refused.body))
  assert.match(refused.body.error!.message, /do not follow the training/)
  writeFileSync(file, right)
  await record(recorded!.folder_sha256)
  assert.equal((await put('colours')).status, 200)
  const again = await service.ask('colours')
  assert.equal(again.status, 200, JSON.stringify(again.body))
  assert.match(again.weights!, /; adapter=/)
})

test('a replica asks for one GPU of its kind, and waits where there is none', rayVllmTest, async () => {
  const policy = { min_replicas: 1, max_replicas: 1, target_requests_per_replica: 8 }
  const application = vllmApplication({
    id: 'gpu',
    working_dir: await createPackageUpload(service.ray, packVllm)(),
    service: { url: app.address, token: '' },
    files: [],
    lora_rank: 16,
    accelerator_type: 'A10G',
    overrides: {},
    policy: { ...policy, scale_up_cooldown_ms: 1000, scale_down_cooldown_ms: 1000 },
    token: '',
    weights: '',
    written_at: 0,
  })
  await serve.change((applications) => void applications.set(application.name, application))
  const reported = await until('Ray to look for room', async () => {
    const { status = '', message = '' } = (await serve.own()).get(application.name) ?? {}
    assert.notEqual(status, 'DEPLOY_FAILED', message)
    return /Resources required for each replica: (\[.*?\])/.exec(message)?.[1]
  })
  assert.deepEqual(JSON.parse(reported), [{ CPU: 1, GPU: 1, 'accelerator_type:A10G': 0.001 }])
  await serve.change((applications) => void applications.delete(application.name))
})

test('deletion removes ours alone', rayVllmTest, async () => {
  for (const name of ['plain', 'colours']) assert.equal((await app.api('DELETE', `/deployments/${name}`)).status, 200)
  await until('our applications to be gone', async () => (await service.ours()).length === 0)
  await until('vLLM to end', () => cluster.processes(vllmProcesses).length === 0)
  const left = () => readdirSync(path.join(scratch, 'runs')).filter((name) => name !== 'tunery-cache')
  await until('files of the account to be gone', () => left().length === 0)
  assert.equal(await service.theirs(), 'hello')
})
