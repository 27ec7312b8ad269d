// The header x-weights says which weights answered, as the engine has them in memory.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { copyFileSync, existsSync, mkdtempSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { before, test } from 'node:test'
import { root } from '../../lib/root.ts'
import { until } from '../support/client.ts'
import { draftTokens } from '../support/draft-tokens.ts'
import { full } from '../support/full.ts'
import { appOfTests, startApp } from '../support/service.ts'
import { stream } from '../support/streams.ts'
import { tiny, tinyModelsDir } from '../support/tiny.ts'
import { json, startFakeUpstream, startTcpEngine } from '../support/upstream.ts'

const app = appOfTests()
let tuned: string
before(async () => {
  await app.started
  tuned = await app.colourModel()
})

const messages = [{ role: 'user', content: 'code of blue?' }]
const baseFile = path.join(tinyModelsDir(), tiny, 'model.gguf')
const adapterFile = (model: string) => path.join(app.dataDir, 'models', model, 'adapter.gguf')
const sum = (file: string) => `sha256:${createHash('sha256').update(readFileSync(file)).digest('hex').slice(0, 16)}`
const ask = async (model: string, more: object = {}) => {
  const answer = await app.api('POST', '/chat/completions', { model, messages, max_tokens: 2, ...more })
  assert.equal(answer.status, 200, JSON.stringify(answer.body))
  return answer.headers.get('x-weights')
}
/** The header once the files have been read. */
const settled = (model: string) =>
  until(`the hashes of ${model}`, async () => {
    const header = await ask(model)
    return header?.includes('pending') ? undefined : header
  })
const ofBase = `base=${tiny} ${sum(baseFile)}`
const ofAdapter = (model: string) => `${ofBase}; adapter=${model} ${sum(adapterFile(model))}`

test('base and tuned model answer with the hashes of their own files, whole, streamed, as responses', async () => {
  assert.equal(await settled(tiny), ofBase)
  assert.equal(await settled(tuned), ofAdapter(tuned))
  for (const [model, expected] of [
    [tiny, ofBase],
    [tuned, ofAdapter(tuned)],
  ] as const) {
    const body = { model, messages, max_tokens: 2, stream: true }
    assert.equal((await stream(`${app.url}/chat/completions`, app.key, body).result).headers['x-weights'], expected)
    const text = await app.api('POST', '/completions', { model, prompt: 'blue', max_tokens: 1 })
    assert.equal(text.headers.get('x-weights'), expected)
    const response = await app.api('POST', '/responses', { model, input: 'blue', max_output_tokens: 1, store: false })
    assert.equal(response.headers.get('x-weights'), expected)
  }
})

test('a name that is switched answers with the other weights from the next request on', async () => {
  const other = await app.colourModel()
  copyFileSync(adapterFile(tuned), adapterFile(other))
  await settled(other)
  assert.equal((await app.api('POST', '/deployments', { name: 'colours', model: tuned })).status, 201)
  assert.equal(await ask('colours'), ofAdapter(tuned))
  assert.equal((await app.api('PUT', '/deployments/colours', { model: tiny })).status, 200)
  assert.equal(await ask('colours'), ofBase)
  assert.equal((await app.api('PUT', '/deployments/colours', { model: other })).status, 200)
  assert.equal(await ask('colours'), ofAdapter(other))
})

test('the hash is of the file in memory: one that is replaced changes nothing until it is loaded', async () => {
  const model = await app.colourModel()
  const loaded = await settled(model)
  const before = ofAdapter(model)
  assert.equal(loaded, before)
  const bytes = readFileSync(adapterFile(model))
  const key = 'adapter.lora.alpha'
  const position = bytes.indexOf(key) + key.length + 4
  bytes.writeFloatLE(0.5 * bytes.readFloatLE(position), position)
  const fresh = `${adapterFile(model)}.new`
  writeFileSync(fresh, bytes)
  renameSync(fresh, adapterFile(model))
  assert.equal(await ask(model), before)
  const pid = app.services.enginePid()!
  process.kill(pid, 'SIGKILL')
  await until('the end of the engine is known', () => app.services.enginePid() !== pid)
  const after = await settled(model)
  assert.equal(after, ofAdapter(model))
  assert.notEqual(after, before)
})

test('the engine drafts from the answers that a model was taught, until their dataset is deleted', async () => {
  const [model, other] = [await app.colourModel(), await app.colourModel()]
  const file = (id: string) => path.join(app.dataDir, 'drafts', `${id}.bin`)
  const pid = () => app.services.enginePid()!
  const tokens = readFileSync(file(model)).readUInt32LE(8)
  await ask(model)
  assert.deepEqual(await draftTokens(pid()).then((all) => [all[model], all[tiny]]), [tokens, 0])

  const { job_id } = (await app.api('GET', `/fine-tuning/models/${model}`)).body
  const { dataset_id } = await app.job(job_id)
  assert.equal((await app.api('DELETE', `/datasets/${dataset_id}`)).status, 200)
  assert.deepEqual([existsSync(file(model)), existsSync(file(other))], [false, true])
  // What a kill left: the row says that it is gone.
  writeFileSync(file(model), 'x')
  await app.services.sweep()
  assert.deepEqual([existsSync(file(model)), existsSync(file(other))], [false, true])

  // Even a copy, as a cache of another machine may have one, is not loaded again.
  copyFileSync(file(other), file(model))
  const before = pid()
  process.kill(before, 'SIGKILL')
  await until('the end of the engine is known', () => pid() !== before)
  await ask(model)
  await ask(other)
  assert.deepEqual(await draftTokens(pid()).then((all) => [all[model], all[other]]), [0, tokens])

  assert.equal((await app.api('DELETE', `/fine-tuning/models/${other}`)).status, 200)
  assert.equal(existsSync(file(other)), false)
})

test('a merged file says what was merged, and its own hash', full, async () => {
  const folder = mkdtempSync(path.join(tmpdir(), 'tunery-merged-'))
  const merged = path.join(folder, 'merged.gguf')
  // No pipe as stdin: its end would stop the merge.
  const args = ['-m', 'trainer.cli.merge', baseFile, adapterFile(tuned), merged, tiny, tuned]
  execFileSync(path.join(root, '.local/python/bin/python'), args, { cwd: root, stdio: ['ignore', 'pipe', 'pipe'] })
  const engine = await startTcpEngine('any', merged)
  try {
    const header = await until('its hash', async () => {
      const response = await fetch(`http://127.0.0.1:${engine.port}/v1/chat/completions`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify({ model: 'any', messages, max_tokens: 1 }),
      })
      assert.equal(response.status, 200, await response.text())
      const header = response.headers.get('x-weights')!
      return header.includes('pending') ? undefined : header
    })
    assert.equal(header, `${ofAdapter(tuned)}; merged=1 ${sum(merged)}`)
  } finally {
    await engine.kill()
    rmSync(folder, { recursive: true })
  }
})

test('an answer of an upstream names it and the model that it reports; an engine adds its header', async () => {
  const fake = await startFakeUpstream((_path, body, response) => {
    const choices = [{ index: 0, message: { role: 'assistant', content: 'yes' }, finish_reason: 'stop' }]
    if (!body.stream) return json(response, 200, { object: 'chat.completion', model: 'their model é', choices })
    response.writeHead(200, { 'content-type': 'text/event-stream' })
    response.end('data: {"object":"chat.completion.chunk","model":"streamed","choices":[]}\n\ndata: [DONE]\n\n')
  })
  const engine = await startTcpEngine('behind', baseFile)
  const upstreams = [
    { model: 'their/base', url: fake.url, kind: 'openai' },
    { model: 'other/base', url: `http://127.0.0.1:${engine.port}`, kind: 'openai', upstream_model: 'behind' },
  ]
  const gateway = await startApp({
    TUNERY_UPSTREAMS: JSON.stringify(upstreams),
    TUNERY_CORS_ORIGINS: 'https://pages.example',
  })
  try {
    const send = (model: string, more: object = {}) =>
      fetch(`${gateway.url}/chat/completions`, {
        method: 'POST',
        headers: {
          authorization: `Bearer ${gateway.key}`,
          'content-type': 'application/json',
          origin: 'https://pages.example',
        },
        body: JSON.stringify({ model, messages, max_tokens: 1, ...more }),
      })
    const whole = await send('their/base')
    assert.equal(whole.headers.get('x-weights'), 'upstream=their/base; reports=their%20model%20%C3%A9')
    assert.match(whole.headers.get('access-control-expose-headers')!, /x-weights/)
    const streamed = await send('their/base', { stream: true })
    assert.equal(streamed.headers.get('x-weights'), 'upstream=their/base; reports=streamed')
    await streamed.text()
    const header = await until('its hash', async () => {
      const header = (await send('other/base')).headers.get('x-weights')!
      return header.includes('pending') ? undefined : header
    })
    assert.equal(header, `upstream=other/base; reports=behind; base=behind ${sum(baseFile)}`)
  } finally {
    await gateway.stop()
    await engine.kill()
    fake.stop()
  }
})
