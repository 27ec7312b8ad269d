// Folders for transformers and ONNX Runtime, through the service: checked in the runtime that each is for, packed, downloaded.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { root } from '../server/config.ts'
import { startApp, type TestApp } from './support/service.ts'

let app: TestApp
let model: string
const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-folders-'))
before(async () => {
  app = await startApp()
  model = await app.colourModel()
})
after(async () => {
  await app.stop()
  rmSync(folder, { recursive: true })
})

const cases = [
  [
    { format: 'huggingface', archive: 'zip' },
    /^transformers \d/,
    0.001,
    ['config.json', 'model.safetensors', 'tokenizer.json', 'chat_template.jinja', 'README.md'],
  ],
  [{ format: 'huggingface', merge: false }, /^transformers \d/, 0.001, ['adapter_config.json', 'adapter_model.safetensors', 'README.md']],
  [{ format: 'onnx', quantization: 'int8' }, /^onnxruntime \d/, 0.15, ['config.json', 'tokenizer.json', 'onnx']],
] as const

for (const [asked, runtime, most, holds] of cases)
  test(`${JSON.stringify(asked)}: one archive that holds the folder, and says what the trainer says`, async () => {
    const made = await app.exported({ model, ...asked })
    assert.equal(made.status, 'ready', JSON.stringify(made.error))
    assert.match(made.check!.runtime, runtime)
    assert.ok(made.check!.agrees && made.check!.log_probability_difference <= most, JSON.stringify(made.check))
    const [file, ...more] = made.files
    assert.deepEqual(more, [])
    const response = await fetch(`${app.url}/exports/${made.id}/download`, { headers: { authorization: `Bearer ${app.key}` } })
    const bytes = new Uint8Array(await response.arrayBuffer())
    assert.equal(createHash('sha256').update(bytes).digest('hex'), file!.sha256)
    const archive = path.join(folder, file!.name)
    writeFileSync(archive, bytes)
    const out = mkdtempSync(path.join(folder, 'out-'))
    execFileSync(path.join(root, '.local/python/bin/python'), ['-c', 'import shutil, sys; shutil.unpack_archive(*sys.argv[1:3])', archive, out])
    const [top] = readdirSync(out)
    const names = readdirSync(path.join(out, top!))
    for (const name of holds) assert.ok(names.includes(name), `${name} is among ${names}`)
  })
