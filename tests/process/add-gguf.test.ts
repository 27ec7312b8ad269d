// A GGUF file, also one of Ollama's store, becomes a base: it can be trained if its tokenizer and weights can be read
// back, else served alone, and the hub says why.
import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { promisify } from 'node:util'
import { root } from '../../lib/root.ts'
import { until } from '../support/client.ts'
import { full } from '../support/full.ts'
import { startApp } from '../support/service.ts'
import { tiny, tinyModelsDir } from '../support/tiny.ts'

const run = promisify(execFile)
const sha256 = (bytes: Uint8Array) => createHash('sha256').update(bytes).digest('hex')

const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-add-gguf-'))
after(() => rmSync(folder, { recursive: true, force: true }))
const store = path.join(folder, 'ollama')
const weights = readFileSync(path.join(tinyModelsDir(), tiny, 'model.gguf'))

const add = (models: string, id: string, from: string) =>
  run(path.join(root, 'tunery'), ['models', 'add', id, '--from', from], {
    env: { ...process.env, TUNERY_MODELS_DIR: models, OLLAMA_MODELS: store },
  })
async function refused(from: string, reason: RegExp) {
  const models = mkdtempSync(path.join(folder, 'none-'))
  await assert.rejects(add(models, 'test/none', from), ({ code, stderr }) => {
    assert.equal(code, 2, stderr)
    assert.match(stderr.trim().split('\n').at(-1), reason)
    assert.doesNotMatch(stderr, /Traceback|^ +at /m)
    return true
  })
  assert.deepEqual(readdirSync(models), [], 'nothing stays behind')
}

/** Stores these bytes under the hash of the weights, as Ollama's model `small:1b`. */
function storeInOllama(bytes: Uint8Array) {
  const manifest = path.join(store, 'manifests/registry.ollama.ai/library/small/1b')
  const blob = path.join(store, 'blobs', `sha256-${sha256(weights)}`)
  for (const file of [manifest, blob]) mkdirSync(path.dirname(file), { recursive: true })
  const layer = { mediaType: 'application/vnd.ollama.image.model', digest: `sha256:${sha256(weights)}` }
  writeFileSync(manifest, JSON.stringify({ layers: [layer] }))
  writeFileSync(blob, bytes)
}

/** A service with these bases, its first base, and whether that can be trained; the base has answered. */
async function served(models: string) {
  const app = await startApp({ TUNERY_MODELS_DIR: models })
  after(() => app.stop())
  const [base] = (await app.api('GET', '/hub/?q=test/')).body.models as { id: string; methods: unknown[] }[]
  const asked = await app.api('POST', '/completions', { model: base!.id, prompt: 'a', max_tokens: 2 })
  assert.equal(asked.status, 200, JSON.stringify(asked.body))
  return { app, base: base!.id, isTrainable: base!.methods.length > 0 }
}

test('a GGUF file whose tokenizer cannot be read back is served alone, and says so', async () => {
  const other = Buffer.from(weights)
  // Another pre-tokenizer, of a name that is as long.
  other.write('refact', other.indexOf('smollm', other.indexOf('tokenizer.ggml.pre')))
  writeFileSync(path.join(folder, 'other.gguf'), other)
  const models = path.join(folder, 'untrainable')
  await add(models, 'test/other', path.join(folder, 'other.gguf'))
  const { app, base, isTrainable } = await served(models)
  assert.ok(!isTrainable)
  const rows = '{"prompt": "a", "completion": "b"}\n{"prompt": "b", "completion": "c"}'
  const dataset_id = (await app.upload(rows)).body.id
  const job = await app.api('POST', '/fine-tuning/jobs', { model_id: base, dataset_id })
  assert.equal(job.status, 400)
  assert.match(
    job.body.error.message,
    /can be served, but not trained: transformers does not read the tokenizer 'refact'/,
  )
})

test('a model of Ollama’s store can be trained where its tokenizer and weights can be read back', full, async () => {
  storeInOllama(weights)
  const models = path.join(folder, 'trainable')
  await add(models, 'test/small', 'ollama:small:1b')
  assert.ok((await served(models)).isTrainable)
})

test('what is absent, damaged or cut is refused in a sentence', async () => {
  await refused('ollama:absent', /Ollama has no model 'absent'/)
  await refused('ollama:../../etc', /not a name of an Ollama model/)
  storeInOllama(weights.subarray(1))
  await refused('ollama:small:1b', /is damaged/)
  writeFileSync(path.join(store, 'manifests/registry.ollama.ai/library/small/1b'), '{')
  await refused('ollama:small:1b', /names no weights/)
  const cut = path.join(folder, 'cut.gguf')
  writeFileSync(cut, weights.subarray(0, -1))
  const looping = Buffer.from(weights)
  const key = 'tokenizer.chat_template'
  const at = looping.indexOf(key) + key.length + 4
  const length = Number(looping.readBigUInt64LE(at))
  looping.write('{% for i in range(10 ** 9) %}{% endfor %}'.padEnd(length), at + 8)
  writeFileSync(path.join(folder, 'loop.gguf'), looping)
  await refused(path.join(folder, 'loop.gguf'), /chat template cannot be used, as it counts to 1000000000\.$/)
  await refused(cut, /cannot serve cut\.gguf, or it is cut off: .*not within the file/)
})

const uint64 = (...values: bigint[]) => Buffer.from(new BigUint64Array(values).buffer)
const uint32 = (...values: number[]) => Buffer.from(new Uint32Array(values).buffer)
const text = (value: string) => Buffer.concat([uint64(BigInt(value.length)), Buffer.from(value)])
const [stringType, arrayType, uint32Type] = [8, 9, 4]

test('a file of no known architecture, or that claims more than it has, is refused at once', async () => {
  const header = (fields: bigint) => [Buffer.from('GGUF'), uint32(3), uint64(0n, fields)]
  const name = [text('general.architecture'), uint32(stringType), text('unknown')]
  const length = [text('unknown.context_length'), uint32(uint32Type, 2048)]
  const hostile = path.join(folder, 'hostile.gguf')
  writeFileSync(hostile, Buffer.concat([...header(2n), ...name, ...length]))
  await refused(hostile, /cannot serve hostile\.gguf.*unknown model architecture/)
  const endless = [text('endless'), uint32(arrayType, uint32Type), uint64(1n << 60n)]
  writeFileSync(hostile, Buffer.concat([...header(2n), ...name, ...endless]))
  await refused(hostile, /cannot serve hostile\.gguf.*header cannot be read/)
})

test('a checkpoint whose files are none is refused in a sentence', async () => {
  const checkpoint = path.join(folder, 'checkpoint')
  mkdirSync(checkpoint)
  for (const [config, reason] of [
    ['', /config\.json is not a JSON object/],
    ['[]', /config\.json is not a JSON object/],
    ['{}', /no safetensors files/],
  ] as const) {
    writeFileSync(path.join(checkpoint, 'config.json'), config)
    await refused(checkpoint, reason)
  }
  writeFileSync(path.join(checkpoint, 'model.safetensors'), '')
  for (const [config, reason] of [
    ['{"architectures": [{}]}', /could not be added: architectures in config\.json must be a list/],
    ['{"architectures": ["A"], "model_type": "llama"}', /added: .* failed \(.*\)\. Compare its files with those/],
  ] as const) {
    writeFileSync(path.join(checkpoint, 'config.json'), config)
    await refused(checkpoint, reason)
  }
})

test('an interrupted command says so and leaves nothing, nor a program that writes on', async () => {
  const models = mkdtempSync(path.join(folder, 'stopped-'))
  const checkpoint = path.join(tinyModelsDir(), tiny, 'hf')
  const adding = add(models, 'test/stopped', checkpoint)
  await until('the files to be copied', () => existsSync(path.join(models, '.adding/test/stopped/hf')))
  adding.child.kill('SIGINT')
  await assert.rejects(adding, ({ code, stderr }) => {
    assert.equal(code, 130)
    assert.doesNotMatch(stderr, /Traceback/)
    return true
  })
  assert.deepEqual(readdirSync(models), [])
})
