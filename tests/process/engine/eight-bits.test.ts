// A base in 16 bits answers at once, gets its eight-bit form beside the answers, and changes to it without losing one.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { copyFileSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { readEightBits } from '../../../lib/eight-bits.ts'
import { tiny, tinyModelsDir, wide } from '../../support/tiny.ts'
import { type Engine, readEvents, root, startEngine, textOf, until } from './engine-process.ts'

const folder = mkdtempSync(path.join(tmpdir(), 'tunery-eight-bits-'))
const file = path.join(folder, 'model.gguf')
const adapter = path.join(folder, 'adapter.gguf')
let engine: Engine
before(async () => {
  copyFileSync(path.join(tinyModelsDir(wide), tiny, 'model.gguf'), file)
  const make = path.join(root, 'tests/process/engine/make-adapter.py')
  execFileSync(path.join(root, '.local/python/bin/python'), [
    make,
    path.join(root, '.local/llama/source/gguf-py'),
    adapter,
    '1',
    '384',
    '2',
  ])
  // As a killed process leaves it.
  writeFileSync(path.join(folder, 'model.eight-bits.gguf.1-1.part'), 'half')
  engine = await startEngine([])
})
after(async () => {
  await engine.stop()
  rmSync(folder, { recursive: true })
})

const complete = (model: string) =>
  engine.ask('POST', '/v1/completions', { model, prompt: 'A ferry crosses the bay', max_tokens: 4, temperature: 0 })
async function weights(model: string) {
  const { status, headers, text } = await complete(model)
  assert.equal(status, 200, text)
  return String(headers['x-weights'])
}

test('a base changes to its eight-bit form while answers continue, with its adapters', async () => {
  const loaded = await engine.ask('POST', '/internal/load_model', { name: 'base', path: file })
  assert.equal(loaded.status, 200, loaded.text)
  const long = engine.stream('/v1/completions', {
    model: 'base',
    prompt: 'A ferry',
    max_tokens: 1500,
    temperature: 0,
    ignore_eos: true,
    stream: true,
  })
  const { headers } = await long.headers
  assert.ok(!String(headers['x-weights']).includes('eight_bits'), 'it answers at once, with the file')
  const lora = { lora_name: 'tuned', lora_path: adapter, base_model_name: 'base' }
  assert.equal((await engine.ask('POST', '/v1/load_lora_adapter', lora)).status, 200)

  // The list of models costs nothing: answers would take from the form that is being made.
  const listed = async () => (await engine.ask('GET', '/v1/models')).json.data[0]
  await until(async () => (await listed()).eight_bits, 'the eight-bit form is there', 120_000)
  assert.match(await weights('base'), /; eight_bits=1/)
  assert.match(await weights('tuned'), /^base=base \S+; eight_bits=1; adapter=tuned sha256:/)
  const events = await readEvents(long)
  assert.ok(events.done, 'the answer that had begun was cut off')
  assert.ok(textOf(events).length > 0)

  const record = readEightBits(file)!
  assert.ok(record.distance.tokens > 100 && record.distance.divergence >= 0 && record.distance.divergence < 0.01)
  assert.ok(record.distance.same_top > 0.8)
  assert.deepEqual(readdirSync(folder).sort(), [
    'adapter.gguf',
    'model.eight-bits.gguf',
    'model.eight-bits.json',
    'model.gguf',
  ])
  assert.ok((await listed()).bytes < record.bytes * 1.1, 'the size is that of the form that answers')
})

test('a base that keeps its original is served from it, though the eight-bit form is there', async () => {
  const load = { name: 'kept', path: file, keep_original: true }
  assert.equal((await engine.ask('POST', '/internal/load_model', load)).status, 200)
  assert.ok(!(await weights('kept')).includes('eight_bits'))
})
