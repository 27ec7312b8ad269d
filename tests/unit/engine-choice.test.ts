import assert from 'node:assert/strict'
import { test } from 'node:test'
import { chooseEngine, shellWords, vllmOptions } from '../../lib/engine-choice.ts'
import { readConfig } from '../../server/config.ts'

const python = '/opt/vllm/bin/python'
const choose = (engine: 'auto' | 'own' | 'vllm', hasGpu: boolean, hasVllm: boolean) =>
  chooseEngine({ engine, vllm_python: python }, { hasGpu, hasVllm })

test('auto takes vLLM where a GPU and vLLM are, and says why it does not', () => {
  assert.equal(choose('auto', true, true).vllm, python)
  assert.equal(choose('auto', false, true).vllm, null)
  assert.match(choose('auto', false, true).why, /no NVIDIA GPU/)
  assert.equal(choose('auto', true, false).vllm, null)
  assert.match(choose('auto', true, false).why, /npm run setup -- --with vllm/)
})

test('own never takes vLLM; vllm takes it without a GPU too, and is refused without the package', () => {
  assert.equal(choose('own', true, true).vllm, null)
  assert.equal(choose('vllm', false, true).vllm, python)
  assert.match(choose('vllm', true, false).problem!, /\/opt\/vllm\/bin\/python does not exist: run `npm run setup/)
})

test('the engine gets the interpreter and the operator’s options', () => {
  const choice = choose('vllm', true, true)
  const settings = { vllm_options: '--tensor-parallel-size 2', training_may_pause_serving: false }
  assert.deepEqual(vllmOptions(choice, settings), ['--vllm', python, '--vllm-options=--tensor-parallel-size 2'])
  const sleeping = { vllm_options: '', training_may_pause_serving: true }
  assert.deepEqual(vllmOptions(choice, sleeping), ['--vllm', python, '--vllm-sleep'])
  assert.deepEqual(vllmOptions(choose('own', true, true), settings), [])
})

test('options are split as a shell does, and a quote without an end is refused at the start', () => {
  assert.deepEqual(shellWords(`--a "b c" --d='e f'  g`), ['--a', 'b c', '--d=e f', 'g'])
  assert.deepEqual(shellWords(''), [])
  for (const text of [`--a "b c`, `it's`, `a" b 'c`]) {
    assert.throws(() => shellWords(text), /the quote ["'] does not end/)
    assert.throws(() => readConfig({ TUNERY_VLLM_OPTIONS: text }), /TUNERY_VLLM_OPTIONS.*does not end/)
  }
})
