import assert from 'node:assert/strict'
import { copyFileSync, cpSync, mkdtempSync, readFileSync, rmSync, statSync, utimesSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { eightBitsFile, eightBitsRecord, writeEightBitsRecord } from '../../lib/eight-bits.ts'
import { joined } from '../../server/features/hub/families.ts'
import { Hub } from '../../server/features/hub/service.ts'
import { tiny, tinyModelsDir } from '../support/tiny.ts'

const free = {
  currency: 'USD',
  training_per_million_tokens: 0,
  input_per_million_tokens: 0,
  output_per_million_tokens: 0,
}
const hub = (memory_bytes: number) => new Hub(tinyModelsDir(), () => free, { memory_bytes })

test('the hub lists the methods of a model before its weights are here, and whether they are', () => {
  const large = hub(1e12)
  const { methods, weights } = large.get('Qwen/Qwen2.5-7B-Instruct')
  assert.deepEqual(methods, ['lora', 'qlora', 'full'])
  assert.equal(weights.available, false)
  assert.equal(large.get(tiny).weights.available, true)
  const untrained = large.list().filter((model) => model.methods.length === 0)
  assert.deepEqual(
    [...new Set(untrained.map(({ category }) => category))].sort(),
    ['embedding'],
    'the models that cannot be trained have no method',
  )
})

test('a model that is being added is none', () => {
  const modelsDir = mkdtempSync(path.join(tmpdir(), 'tunery-adding-'))
  after(() => rmSync(modelsDir, { recursive: true }))
  for (const id of [tiny, '.adding/tiny', '.adding/test/new'])
    cpSync(path.join(tinyModelsDir(), tiny), path.join(modelsDir, id), { recursive: true })
  const models = new Hub(modelsDir, () => free)
  assert.deepEqual(
    models.list().flatMap(({ id, weights }) => (weights.available ? [id] : [])),
    [tiny],
  )
  assert.equal(models.has('.adding/tiny'), false)
})

test('a method that can never fit into memory is not listed', () => {
  const laptop = hub(16e9)
  assert.deepEqual(laptop.get('Qwen/Qwen2.5-7B-Instruct').methods, ['lora', 'qlora'])
  assert.deepEqual(laptop.get('Qwen/Qwen2.5-0.5B-Instruct').methods, ['lora', 'qlora', 'full'])
  assert.deepEqual(hub(8e9).get('Qwen/Qwen2.5-7B-Instruct').methods, ['qlora'])
})

test('a method that failed with each model of the family is not listed, and parts are told by name', () => {
  const row = joined([
    ['small', { architecture: 'qwen2', lora: 'yes', full: 'It fails.', tools: 'yes (hermes)' }],
    ['large', { architecture: 'qwen2', lora: 'No.', full: 'It fails too.', tools: 'yes (hermes)' }],
  ])
  assert.deepEqual(row, { lora: 'in part, not large: No.', full: 'It fails.', tools: 'yes (hermes)' })
  const id = 'Qwen/Qwen2.5-0.5B-Instruct'
  const models = new Hub(tinyModelsDir(), () => free, {
    memory_bytes: 1e12,
    families: new Map([['qwen2', { ...row, experts: 'None is served.' }]]),
  })
  const { methods, tested } = models.get(id)
  assert.deepEqual([methods, tested], [['lora', 'qlora'], { ...row, experts: 'None is served.' }])
  // A job that wants it gets the sentence of the table.
  models.requireTried(id, { lora_config: { experts: false } })
  assert.throws(() => models.requireTried(id, { method: 'full' }), {
    message: `'config.method': full cannot be trained with ${id}. It fails.`,
  })
  assert.throws(() => models.requireTried(id, { lora_config: { experts: true } }), {
    message: `'config.lora_config.experts': experts cannot be trained with ${id}. None is served.`,
  })
})

test('a base’s card has the form that answers and its distance, unless the original is kept or has changed', () => {
  const modelsDir = mkdtempSync(path.join(tmpdir(), 'tunery-hub-'))
  after(() => rmSync(modelsDir, { recursive: true }))
  cpSync(path.join(tinyModelsDir(), tiny), path.join(modelsDir, tiny), { recursive: true })
  const file = path.join(modelsDir, tiny, 'model.gguf')
  const weights = (keep_original = false) => new Hub(modelsDir, () => free, { keep_original }).get(tiny).weights
  assert.deepEqual([weights().keep_original, weights().eight_bits], [false, null])

  copyFileSync(file, eightBitsFile(file))
  const { mtime, mtimeMs } = statSync(file)
  utimesSync(eightBitsFile(file), mtime, mtime)
  assert.equal(weights().eight_bits, null, 'it is not measured yet')
  const distance = { tokens: 326, divergence: 0.0002, logprob_difference: 0.0156, same_top: 0.94 }
  const record = { original_type: 'BF16', original_mtime_ms: mtimeMs, distance }
  writeFileSync(eightBitsRecord(file), JSON.stringify(record))
  const size_mb = Math.round(statSync(file).size / 1e6)
  assert.deepEqual(weights().eight_bits, { size_mb, original_type: 'BF16', distance })
  assert.deepEqual([weights(true).keep_original, weights(true).eight_bits], [true, null])

  const problem = 'Its eight-bit form answers from the next load.'
  writeEightBitsRecord(file, { original_type: 'BF16', distance, problem })
  assert.deepEqual([weights().eight_bits, weights().eight_bits_problem], [null, problem], 'the original answers')
  assert.equal(weights(true).eight_bits_problem, null, 'nobody wants another form')
  writeEightBitsRecord(file, { problem })
  assert.deepEqual([weights().eight_bits, weights().eight_bits_problem], [null, problem], 'without a form')
  writeFileSync(eightBitsRecord(file), JSON.stringify(record))
  assert.equal(weights().eight_bits_problem, null)

  const description = path.join(modelsDir, tiny, 'model.json')
  const described = JSON.parse(readFileSync(description, 'utf8'))
  writeFileSync(description, JSON.stringify({ ...described, keep_original_weights: true }))
  assert.deepEqual([weights().keep_original, weights().eight_bits], [true, null])
  assert.equal(new Hub(modelsDir, () => free).keepsOriginal('mdl_tuned'), true)
  writeFileSync(description, JSON.stringify(described))

  for (const damaged of ['{', '{}', JSON.stringify({ ...record, distance: { ...distance, tokens: null } })]) {
    writeFileSync(eightBitsRecord(file), damaged)
    assert.equal(weights().eight_bits, null, damaged)
  }
  writeFileSync(eightBitsRecord(file), JSON.stringify(record))
  utimesSync(file, 1, 1)
  assert.equal(weights().eight_bits, null, 'the form of an earlier original')
  writeFileSync(eightBitsRecord(file), JSON.stringify({ ...record, problem }))
  assert.equal(weights().eight_bits_problem, null, 'the problem of an earlier original')
})
