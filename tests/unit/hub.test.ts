import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createHub } from '../../server/hub/service.ts'
import { tiny, tinyModelsDir } from '../support/tiny.ts'

const free = {
  currency: 'USD',
  training_per_million_tokens: 0,
  input_per_million_tokens: 0,
  output_per_million_tokens: 0,
}
const hub = (memory_bytes: number) => createHub(tinyModelsDir(), () => free, { memory_bytes })

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

test('a method that can never fit into memory is not listed', () => {
  const laptop = hub(16e9)
  assert.deepEqual(laptop.get('Qwen/Qwen2.5-7B-Instruct').methods, ['lora', 'qlora'])
  assert.deepEqual(laptop.get('Qwen/Qwen2.5-0.5B-Instruct').methods, ['lora', 'qlora', 'full'])
  assert.deepEqual(hub(8e9).get('Qwen/Qwen2.5-7B-Instruct').methods, ['qlora'])
})
