// vLLM behind the engine: what it is asked for, and how much memory it gets.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { GenerationRequest } from '../../../engine/batching/generation.ts'
import type { Model } from '../../../engine/llama/model.ts'
import { deviceOf, likeliest, memoryShare } from '../../../engine/vllm/base.ts'
import { generateBody } from '../../../engine/vllm/body.ts'
import { plainSampling } from './plain-sampling.ts'

const model = {
  vocab: {
    size: 4,
    eos: 2,
    isEndOfGeneration: (token: number) => token === 2 || token === 3,
    special_tokens: [1, 2, 3].map((token) => ({ token, text: '', control: true, lstrip: false, rstrip: false })),
  },
} as unknown as Model
const request: GenerationRequest = {
  prompt: [0, 1],
  pictures: [],
  max_tokens: 5,
  stop: [],
  sampling: { ...plainSampling, top_p: 0.9 },
  top_logprobs: null,
  control_texts: null,
  grammar: null,
  account: 'a',
  background: false,
}

test('a generation is asked for in tokens, ends at every end token, and names our sampling', () => {
  const { token_ids, sampling_params, priority } = generateBody(model, request)
  assert.deepEqual(token_ids, [0, 1])
  assert.equal(priority, 0)
  assert.deepEqual(sampling_params.stop_token_ids, [2, 3])
  const { temperature, top_k, top_p, max_tokens, seed, logit_bias, logprobs } = sampling_params
  assert.deepEqual({ temperature, top_k, top_p, max_tokens }, { temperature: 0, top_k: 50, top_p: 0.9, max_tokens: 5 })
  assert.deepEqual([seed, logit_bias, logprobs], [undefined, undefined, undefined])
  assert.equal(generateBody(model, { ...request, background: true }).priority, 1, 'live requests come first')
})

test('accounts share no prefix cache', () => {
  const saltOf = (account: string) => generateBody(model, { ...request, account }).cache_salt
  assert.equal(saltOf('a'), saltOf('a'))
  assert.notEqual(saltOf('a'), saltOf('b'))
})

test('seeds of 64 bits become numbers that JSON holds, and differ where they differ', () => {
  const seedOf = (seed: bigint) => {
    const { sampling_params } = generateBody(model, { ...request, sampling: { ...request.sampling, seed } })
    return (JSON.parse(JSON.stringify(sampling_params)) as { seed: number }).seed
  }
  assert.ok(Number.isSafeInteger(seedOf(-(2n ** 63n) + 1n)))
  assert.notEqual(seedOf(1n), seedOf(2n))
})

test('a grammar forbids control tokens but the end of a text, and those that the template writes as text', () => {
  const source = { kind: 'ebnf', ebnf: 'root ::= "a"' } as const
  const grammar = { source, mask: () => null, accept() {}, close() {} }
  const { sampling_params } = generateBody(model, { ...request, grammar, control_texts: new Map([[1, Buffer.of()]]) })
  assert.deepEqual(sampling_params.structured_outputs, { grammar: source.ebnf })
  assert.deepEqual(sampling_params.logit_bias, { 3: -100 })
})

test('the likeliest tokens are in their order, without the sampled one where it is not among them', () => {
  const all = [
    { token: 9, logprob: -5 },
    { token: 1, logprob: -1 },
    { token: 2, logprob: -2 },
  ]
  assert.deepEqual(
    likeliest(all, 2).map(({ token }) => token),
    [1, 2],
  )
})

test('KV caches take a quarter of the device or what can be used, and the context fits in them', () => {
  const small = { context_length: 8192, kv_bytes_per_token: 20_000 }
  assert.deepEqual(memoryShare(small, 80e9, null, 32), { cache_bytes: 32 * 8192 * 20_000, context_length: 8192 })
  const long = memoryShare({ context_length: 1_000_000, kv_bytes_per_token: 100_000 }, 80e9, null, 256)
  assert.equal(long.cache_bytes, 20e9)
  assert.ok(long.context_length < 200_000 && long.context_length > 180_000)
  assert.equal(memoryShare(small, 80e9, 5e8, 32).cache_bytes, 5e8, 'a limit of the operator counts')
})

test('a base goes to the GPU with the most free memory, unless the operator names GPUs', () => {
  const gpus = [10e9, 70e9].map((free_bytes, index) => ({ index, name: `GPU ${index}`, total_bytes: 80e9, free_bytes }))
  assert.equal(deviceOf(gpus, undefined, []).env.CUDA_VISIBLE_DEVICES, '1')
  assert.deepEqual(deviceOf(gpus, '0,1', []), { name: 'GPU 0', total_bytes: 80e9, env: {} })
  assert.deepEqual(deviceOf(gpus, undefined, ['--tensor-parallel-size', '2']).env, {})
  assert.throws(() => deviceOf([], undefined, []), /shows no GPU/)
})

test('what our API takes and vLLM refuses is changed to what means the same', () => {
  const { sampling_params } = generateBody(model, {
    ...request,
    sampling: { ...request.sampling, top_p: 0 },
    stop: ['a\ud800'],
  })
  assert.ok((sampling_params.top_p as number) > 0)
  assert.deepEqual(sampling_params.stop, ['a\ufffd'])
})
