// Downloads of base models from a local fake of the Hugging Face Hub: a real HTTP server with a real checkpoint.
import assert from 'node:assert/strict'
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { fetchFile, HashMismatch, listCheckpoint } from '../../server/features/hub/checkpoint.ts'
import { startCli } from '../support/cli.ts'
import { type Client, client, colourRows, until } from '../support/client.ts'
import { claimAll } from '../support/disk.ts'
import { full } from '../support/full.ts'
import { modelHub, revision, weights } from '../support/model-hub.ts'
import { dataFolder } from '../support/server.ts'
import { startApp, type TestApp } from '../support/service.ts'
import { tiny, tinyModelsDir } from '../support/tiny.ts'

const id = 'HuggingFaceTB/SmolLM2-360M-Instruct'
const checkpoint = path.join(tinyModelsDir(), tiny, 'hf')
const size = statSync(path.join(checkpoint, weights)).size
const half = Math.floor(size / 2)
const modelsDir = () => mkdtempSync(path.join(os.tmpdir(), 'tunery-models-'))

let hub: Awaited<ReturnType<typeof modelHub>>
let app: TestApp
let operator: Client
let models: string
before(async () => {
  hub = await modelHub(checkpoint, id)
  models = modelsDir()
  app = await startApp({
    TUNERY_HUGGINGFACE_URL: hub.url,
    TUNERY_MODELS_DIR: models,
    TUNERY_HUGGINGFACE_TOKEN: 'hf_of_the_operator',
  })
  operator = client(app.url, (await app.services.accounts.createKey('ops', 'operator', app.owner.user_id)).key)
})
after(async () => {
  await app.stop()
  hub.close()
  rmSync(models, { recursive: true })
})

const resetHub = () =>
  Object.assign(hub, {
    status: undefined,
    cut: undefined,
    stall: undefined,
    corrupt: false,
    ignoresRanges: false,
    withoutWeights: false,
    ranges: [],
    tokens: [],
  })
const source = () => ({ url: hub.url, token: undefined, model_id: id })
const getModel = async (api: Client) => (await api.api('GET', `/hub/models/${id}`)).body
const start = (api: Client, model = id) => api.api('POST', `/hub/models/${model}/download`)
const cancel = (api: Client) => api.api('DELETE', `/hub/models/${id}/download`)
const downloaded = () => path.join(models, '.downloads', id)
const untilDownloadEnded = (api: Client = app) =>
  until('the download to end', async () => {
    const { download } = await getModel(api)
    return ['completed', 'failed', 'cancelled'].includes(download?.status) && download
  })
async function startStalledDownload() {
  Object.assign(resetHub(), { stall: half })
  assert.equal((await start(operator)).status, 202)
  await until(
    'half of the weights',
    async () => (await getModel(app)).download.status === 'downloading' && hub.ranges.length === 1,
  )
}
async function job(api: Client, config: object = {}) {
  const dataset_id = (await api.upload(colourRows(16))).body.id
  return api.api('POST', '/fine-tuning/jobs', {
    model_id: id,
    dataset_id,
    config: { training_config: { epochs: 1 }, ...config },
  })
}

test('without permission to download, jobs, deployments and downloads are refused with instructions', async () => {
  resetHub()
  for (const { status, body } of [
    await job(app),
    await app.api('POST', '/deployments', { model: id, name: 'base' }),
    await start(app),
  ]) {
    assert.equal(status, 400)
    assert.equal(body.error.code, 'model_not_available')
    assert.match(
      body.error.message,
      /tunery models add .*or POST \/v1\/hub\/models\/.*\/download with a key that has the scope operator/,
    )
  }
  assert.equal((await getModel(app)).download, null)
  assert.equal((await start(operator, 'no/such')).body.error.code, 'model_not_found')
  assert.equal((await cancel(operator)).body.error.code, 'invalid_request')
  assert.equal((await operator.api('POST', `/hub/models/${id}`)).body.error.code, 'not_found')
  assert.deepEqual(hub.tokens, [], 'the hub got no request')
})

test('a model that is gated, missing or without safetensors fails with one clear sentence', async () => {
  for (const [status, code, pattern] of [
    [403, 'access_denied', /accept the model's license .*TUNERY_HUGGINGFACE_TOKEN/],
    [401, 'access_denied', /\(401\)/],
    [undefined, 'no_safetensors', /no safetensors files; other formats can run code/],
    [404, 'not_on_hub', /has no model HuggingFaceTB/],
  ] as const) {
    Object.assign(resetHub(), { status, withoutWeights: status === undefined })
    assert.equal((await start(operator, id.replace('/', '%2F'))).status, 202)
    const { status: state, error } = await untilDownloadEnded()
    assert.equal(state, 'failed')
    assert.equal(error.code, code)
    assert.match(error.message, pattern)
    assert.equal(hub.tokens.at(-1), 'Bearer hf_of_the_operator')
  }
  const { error } = (await job(app)).body
  assert.match(error.message, /Their download failed: .*no model .*tunery models add/)
  assert.equal(error.details.download.status, 'failed')
})

test('weights with a wrong hash are retried once, then fail and are removed', async () => {
  Object.assign(resetHub(), { corrupt: true })
  await start(operator)
  const { status, error } = await untilDownloadEnded()
  assert.deepEqual([status, error.code, hub.ranges], ['failed', 'hash_mismatch', [0, 0]])
  assert.match(error.message, /its hash differs/)
  assert.ok(readdirSync(path.join(downloaded(), 'hf')).every((name) => !name.includes('safetensors')))
  assert.equal((await getModel(app)).weights.available, false)
})

test('only the operator cancels a shared download; its jobs fail with the reason, its files are removed', async () => {
  await startStalledDownload()
  const waiting = await job(app)
  assert.equal(waiting.status, 201, 'any account may join a download in progress')
  for (const [what, status] of [
    ['pause', 'paused'],
    ['resume', 'queued'],
  ])
    assert.equal((await app.api('POST', `/fine-tuning/jobs/${waiting.body.id}/${what}`)).body.status, status)
  const chat = await app.api('POST', '/chat/completions', { model: id, messages: [{ role: 'user', content: 'hi' }] })
  assert.match(chat.body.error.message, /being downloaded \(\d+% of them are here\)/)
  assert.equal((await cancel(app)).status, 403)
  assert.equal((await cancel(operator)).body.download.status, 'cancelled')
  const { status, error } = await app.untilEnded(waiting.body.id)
  assert.deepEqual([status, error?.code], ['failed', 'download_failed'])
  await until('the files to be removed', () => !existsSync(downloaded()))
  const audit = (await app.api('GET', '/audit')).body.items.map(({ action }: { action: string }) => action)
  assert.ok(audit.includes('download.started') && audit.includes('download.cancelled'))
})

test('only data files of a checkpoint are downloaded, and no file with an unsafe path', async () => {
  resetHub()
  const { files } = await listCheckpoint(source(), 'main', AbortSignal.timeout(10_000))
  assert.deepEqual(files.map((file) => file.path).sort(), readdirSync(checkpoint).sort())
})

test('a partial file resumes; wrong or surplus bytes are discarded', async () => {
  const content = readFileSync(path.join(checkpoint, weights))
  const { files } = await listCheckpoint(source(), 'main', AbortSignal.timeout(10_000))
  const file = files.find((file) => file.path === weights)!
  const folder = modelsDir()
  const [target, part] = [path.join(folder, weights), path.join(folder, `${weights}.part`)]
  async function fetchAfter(partial: Buffer, expected: number[]) {
    hub.ranges = []
    writeFileSync(part, partial)
    let counted = Math.min(partial.length, size)
    await fetchFile(source(), revision, file, folder, AbortSignal.timeout(30_000), (bytes) => {
      counted += bytes
    })
    assert.ok(readFileSync(target).equals(content))
    assert.deepEqual([counted, hub.ranges], [size, expected])
    rmSync(target)
  }
  resetHub()
  await fetchAfter(content.subarray(0, half), [half])
  await fetchAfter(content, [])
  await fetchAfter(Buffer.concat([content, content]), [0])
  hub.ignoresRanges = true
  await fetchAfter(content.subarray(0, half), [0])
  resetHub()
  await assert.rejects(fetchAfter(Buffer.alloc(half), [half]), HashMismatch)
  assert.deepEqual(readdirSync(folder), [])
  rmSync(folder, { recursive: true })
})

test('a download that would not fit on the disk is refused before anything is fetched', async () => {
  resetHub()
  const full = await startApp({
    TUNERY_HUGGINGFACE_URL: hub.url,
    TUNERY_MODELS_DIR: models,
    TUNERY_MODEL_DOWNLOADS: 'any',
    TUNERY_MIN_FREE_DISK_MB: '1000000',
  })
  const { status, body } = await start(full)
  await full.stop()
  assert.deepEqual([status, body.error.code, hub.tokens.length], [503, 'storage_full', 0])
})

test('a download ends where other files take the space, and leaves nothing that keeps the disk full', async () => {
  await startStalledDownload()
  const claim = await claimAll(models)
  const { status, error } = await untilDownloadEnded()
  claim.release()
  assert.deepEqual([status, error.code], ['failed', 'storage_full'])
  assert.ok(!existsSync(downloaded()))
})

test(
  'a download shared by two accounts survives a kill and a broken connection, then trains and serves',
  full,
  async () => {
    Object.assign(resetHub(), { stall: half })
    const modelsFolder = modelsDir()
    const folder = dataFolder('downloads', {
      TUNERY_MODELS_DIR: modelsFolder,
      TUNERY_HUGGINGFACE_URL: hub.url,
      TUNERY_MODEL_DOWNLOADS: 'any',
    })
    try {
      const key = folder.key()
      const otherKey = folder.tunery('accounts', 'create', '--name', 'other').key as unknown as { key: string } | string
      const first = await folder.start()
      const one = client(first.url, key)
      const other = client(first.url, typeof otherKey === 'string' ? otherKey : otherKey.key)
      const created = await job(one)
      assert.equal(created.body.status, 'queued')
      assert.deepEqual(created.body.resolved_config.lora_config.target_modules, {
        value: ['all-linear'],
        source: 'default',
      })
      const wrong = await job(one, { lora_config: { target_modules: ['nope'] } })
      const deployment = await other.api('POST', '/deployments', { model: id, name: 'base' })
      assert.deepEqual([deployment.status, deployment.body.status], [201, 'starting'])
      await until(
        'half of the weights on disk',
        () => existsSync(path.join(modelsFolder, '.downloads', id, 'hf', `${weights}.part`)) && hub.ranges.length === 1,
      )
      await until('half of the weights reported', async () => (await getModel(one)).download.progress > 0.2)
      assert.equal((await cancel(one)).status, 403, 'another account waits for it')
      await first.end('SIGKILL')

      const cut = Math.floor(size * 0.75)
      Object.assign(hub, { stall: undefined, cut, ranges: [] })
      const second = await folder.start()
      const again = client(second.url, key)
      await until('the connection to break', () => hub.ranges.length > 1)
      hub.cut = undefined
      const { status, progress, bytes, total_bytes } = await untilDownloadEnded(again)
      assert.deepEqual([status, progress, bytes], ['completed', 1, total_bytes])
      assert.ok(hub.ranges[0]! > 0 && hub.ranges[0]! <= half, `it resumed after a kill from ${hub.ranges[0]}`)
      assert.ok(
        // Bytes that a broken connection had not delivered yet are lost.
        hub.ranges.slice(1).every((from) => from > half && from <= cut),
        `it resumed after a break from ${hub.ranges.slice(1)}`,
      )

      const done = await again.untilEnded(created.body.id)
      assert.equal(done.status, 'completed', JSON.stringify(done.error))
      assert.ok(done.resolved_config.lora_config!.target_modules.value.includes('q_proj'))
      assert.match((await again.untilEnded(wrong.body.id)).error?.message ?? '', /no linear layer named 'nope'/)
      const messages: string[] = []
      for await (const { message } of again.events(done.id)) messages.push(message)
      assert.match(
        messages.join('\n'),
        /waits for the weights(.*\n)+.*being downloaded: \d+% of \d+ MB(.*\n)+.*are here; the job waits for its turn/,
      )
      const serving = client(second.url, typeof otherKey === 'string' ? otherKey : otherKey.key)
      await until('the deployment', async () => (await serving.api('GET', '/deployments/base')).body.status === 'ready')
      const chat = await serving.api('POST', '/chat/completions', {
        model: 'base',
        max_tokens: 2,
        messages: [{ role: 'user', content: 'hi' }],
      })
      assert.equal(chat.status, 200)

      assert.equal((await start(again)).body.weights.available, true, 'present weights are not downloaded again')
      const files = readdirSync(path.join(modelsFolder, id, 'hf'))
      assert.ok(!files.some((name) => name.endsWith('.py')), 'no code is fetched')
      assert.deepEqual(
        readFileSync(path.join(modelsFolder, id, 'hf', weights)),
        readFileSync(path.join(checkpoint, weights)),
      )
      assert.equal(JSON.parse(readFileSync(path.join(modelsFolder, id, 'model.json'), 'utf8')).id, id)
      assert.deepEqual(readdirSync(path.join(modelsFolder, '.downloads', id.split('/')[0]!)), [])
    } finally {
      folder.remove()
      rmSync(modelsFolder, { recursive: true, force: true })
    }
  },
)

test(
  'models add keeps what has come when it is interrupted, and the same command continues; one at a time',
  full,
  async () => {
    Object.assign(resetHub(), { corrupt: true })
    const folder = modelsDir()
    const env = { ...process.env, TUNERY_MODELS_DIR: folder, TUNERY_HUGGINGFACE_URL: hub.url }
    const add = () => startCli(env, ['models', 'add', id]).ended
    const damaged = await add()
    assert.match(damaged.stderr, /sent a damaged file twice: model\.safetensors is not the file/)
    assert.equal(hub.ranges.length, 2)
    assert.deepEqual(readdirSync(folder), [], 'nothing is left of it')
    Object.assign(resetHub(), { stall: half })
    const stalled = startCli(env, ['models', 'add', id])
    await until('half of the weights', () => hub.ranges.length === 1 && /4\d %/.test(stalled.stderr()))
    stalled.child.kill('SIGINT')
    const { status, stderr } = await stalled.ended
    assert.equal(status, 130)
    assert.match(stderr, /What has come is kept/)
    Object.assign(resetHub(), { cut: half })
    const cut = await add()
    assert.equal(cut.status, 2)
    assert.match(cut.stderr, /the connection to .* ended .*; what has come is kept: the same command continues\./)
    resetHub()
    const converted = startCli(env, ['models', 'add', id])
    await until('the conversion to begin', () => existsSync(path.join(folder, '.adding', id, 'model.gguf')))
    converted.child.kill('SIGINT')
    const during = await converted.ended
    assert.equal(during.status, 130)
    assert.match(during.stderr, /What was downloaded is kept: the same command continues\./)
    assert.deepEqual(readdirSync(path.join(folder, '.adding', id)).sort(), ['hf', 'revision'])
    // As a lock of the same name that a loss of power, or a killed program of an earlier version, leaves.
    writeFileSync(path.join(folder, '.adding', `${id}.lock`), '')
    const both = await Promise.all([add(), add()])
    assert.deepEqual(both.map(({ status }) => status).sort(), [0, 2], both.map(({ stderr }) => stderr).join('\n'))
    assert.match(both.find(({ status }) => status)!.stderr, /is being added already/)
    assert.deepEqual(hub.ranges, [half], 'what had come was not fetched again')
    assert.deepEqual(readdirSync(folder), ['HuggingFaceTB'])
    assert.deepEqual(readdirSync(path.join(folder, id)).sort(), ['hf', 'model.gguf', 'model.json'])
    rmSync(folder, { recursive: true })
  },
)
