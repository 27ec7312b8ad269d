// A GGUF file, also one of Ollama's store, becomes a base: it can be trained if its tokenizer and weights can be read
// back, else served alone, and the hub says why.
import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { createHash } from 'node:crypto'
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { test } from 'node:test'
import { promisify } from 'node:util'
import { root } from '../../lib/root.ts'
import { startApp } from '../support/service.ts'
import { tiny, tinyModelsDir } from '../support/tiny.ts'

const run = promisify(execFile)
const sha256 = (bytes: Uint8Array) => createHash('sha256').update(bytes).digest('hex')

test('a GGUF file becomes a base, from a folder or from Ollama’s store', async (t) => {
  const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-add-gguf-'))
  t.after(() => rmSync(folder, { recursive: true, force: true }))
  const models = path.join(folder, 'models')
  const store = path.join(folder, 'ollama')
  const weights = readFileSync(path.join(tinyModelsDir(), tiny, 'model.gguf'))
  const add = (id: string, from: string) =>
    run(path.join(root, 'tunery'), ['models', 'add', id, '--from', from], {
      env: { ...process.env, TUNERY_MODELS_DIR: models, OLLAMA_MODELS: store },
    })
  const refused = async (id: string, from: string, reason: RegExp) =>
    assert.rejects(add(id, from), ({ stderr }) => {
      assert.match(stderr, reason)
      assert.doesNotMatch(stderr, /Traceback/)
      return true
    })

  const other = Buffer.from(weights)
  // Another pre-tokenizer, of a name that is as long.
  other.write('refact', other.indexOf('smollm', other.indexOf('tokenizer.ggml.pre')))
  writeFileSync(path.join(folder, 'other.gguf'), other)
  await add('test/other', path.join(folder, 'other.gguf'))

  const manifest = path.join(store, 'manifests/registry.ollama.ai/library/small/1b')
  const blob = path.join(store, 'blobs', `sha256-${sha256(weights)}`)
  for (const file of [manifest, blob]) mkdirSync(path.dirname(file), { recursive: true })
  const layer = { mediaType: 'application/vnd.ollama.image.model', digest: `sha256:${sha256(weights)}` }
  writeFileSync(manifest, JSON.stringify({ layers: [layer] }))
  writeFileSync(blob, weights)
  await add('test/small', 'ollama:small:1b')

  await refused('test/none', 'ollama:absent', /Ollama has no model 'absent'/)
  await refused('test/none', 'ollama:../../etc', /not a name of an Ollama model/)
  writeFileSync(blob, weights.subarray(1))
  await refused('test/none', 'ollama:small:1b', /is damaged/)
  writeFileSync(path.join(folder, 'cut.gguf'), weights.subarray(0, 2000))
  await refused('test/none', path.join(folder, 'cut.gguf'), /cut\.gguf cannot be read/)
  writeFileSync(path.join(folder, 'empty.gguf'), '')
  await refused('test/none', path.join(folder, 'empty.gguf'), /empty\.gguf cannot be read/)

  const app = await startApp({ TUNERY_MODELS_DIR: models })
  t.after(() => app.stop())
  const bases = (await app.api('GET', '/hub/?q=test/')).body.models as { id: string; methods: unknown[] }[]
  const methods = Object.fromEntries(bases.map(({ id, methods }) => [id, methods.length > 0]))
  assert.deepEqual(methods, { 'test/other': false, 'test/small': true })
  for (const model of Object.keys(methods)) {
    const asked = await app.api('POST', '/completions', { model, prompt: 'a', max_tokens: 2 })
    assert.equal(asked.status, 200, JSON.stringify(asked.body))
  }
  const dataset_id = (await app.upload('{"prompt": "a", "completion": "b"}\n{"prompt": "b", "completion": "c"}')).body
    .id
  const job = await app.api('POST', '/fine-tuning/jobs', { model_id: 'test/other', dataset_id })
  assert.equal(job.status, 400)
  assert.match(
    job.body.error.message,
    /can be served, but not trained: transformers does not read the tokenizer 'refact'/,
  )
})
