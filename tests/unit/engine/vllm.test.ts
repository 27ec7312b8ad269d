// vLLM behind the engine: what it is asked for, and how much memory it gets.
import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { mkdirSync, mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { createServer } from 'node:net'
import os from 'node:os'
import path from 'node:path'
import { test } from 'node:test'
import type { GenerationRequest } from '../../../engine/batching/generation.ts'
import type { Model } from '../../../engine/llama/model.ts'
import { likeliest } from '../../../engine/vllm/base.ts'
import { generateBody } from '../../../engine/vllm/body.ts'
import { deviceOf, memoryShare } from '../../../engine/vllm/placement.ts'
import { removeStaleFolders } from '../../../engine/vllm/process.ts'
import { DeviceClaims } from '../../../engine/vllm/sleep.ts'
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
  const gpu = { total_bytes: 80e9, free_bytes: 80e9 }
  const whole = { cache_bytes: 32 * 8192 * 20_000, context_length: 8192 }
  assert.deepEqual(memoryShare(small, gpu, 1e9, null, 32), whole)
  assert.deepEqual(memoryShare(small, { ...gpu, free_bytes: null }, 1e9, null, 32), whole, 'the driver does not answer')
  const long = memoryShare({ context_length: 1_000_000, kv_bytes_per_token: 100_000 }, gpu, 1e9, null, 256)
  assert.equal(long.cache_bytes, 20e9)
  assert.ok(long.context_length < 200_000 && long.context_length > 180_000)
  assert.equal(memoryShare(small, gpu, 1e9, 5e8, 32).cache_bytes, 5e8, 'a limit of the operator counts')
})

test('beside a training KV caches take what weights and vLLM leave of the free memory', () => {
  const model = { context_length: 8192, kv_bytes_per_token: 1_000_000 }
  const beside = (free_bytes: number) => memoryShare(model, { total_bytes: 80e9, free_bytes }, 2e9, null, 256)
  assert.equal(beside(80e9).cache_bytes, 20e9)
  const { cache_bytes, context_length } = beside(12e9)
  assert.ok(cache_bytes + 2e9 + 3e9 <= 12e9 && cache_bytes > 6e9, String(cache_bytes))
  assert.ok(context_length * model.kv_bytes_per_token <= cache_bytes && context_length > 4096)
  assert.equal(beside(1e9).cache_bytes, 2048e6, 'too little for any: vLLM says so')
})

test('a base goes to the GPU with the most free memory, unless the operator names GPUs', async () => {
  const gpus = [10e9, 70e9].map((free_bytes, index) => ({
    ...{ index, uuid: `GPU-${index}a`, name: `GPU ${index}` },
    ...{ total_bytes: 80e9, free_bytes },
  }))
  assert.equal(deviceOf(gpus, undefined, []).env.CUDA_VISIBLE_DEVICES, '1')
  assert.deepEqual(deviceOf(gpus, undefined, []).ids, ['GPU-1a'])
  const { env, ids } = deviceOf(gpus, '0,1', [])
  assert.deepEqual([env, ids], [{}, null], 'vLLM may be on any of them')
  const claims = new DeviceClaims()
  const state = { version: 1, grace_ms: 0, wait_ms: 0 }
  await claims.apply({ ...state, claims: [], holds: [{ devices: ['GPU-1a'], bytes: 30e9 }] })
  const beside = deviceOf(gpus, undefined, [], claims)
  assert.deepEqual([beside.ids, beside.free_bytes], [['GPU-1a'], 50e9], 'what a training may take is not free')
  await claims.apply({ ...state, claims: [{ job: 'j', devices: ['GPU-1a'], end: false }], holds: [] })
  const claimed = deviceOf(gpus, undefined, [], claims)
  assert.deepEqual(claimed.ids, ['GPU-0a'], 'not where a training has claimed the memory')
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

test('folders that killed engines left are removed, and those of running ones and of others stay', async () => {
  const parent = mkdtempSync(path.join(os.tmpdir(), 'stale-'))
  const { pid } = spawnSync(process.execPath, ['--version'])
  const listening = path.join(parent, `tunery-vllm-${pid}-served`)
  for (const name of [`tunery-vllm-${pid}-gone`, `tunery-vllm-${process.pid}-mine`, 'tunery-vllm-x', 'other'])
    mkdirSync(path.join(parent, name))
  mkdirSync(listening)
  const server = createServer().listen(path.join(listening, 'v.sock'))
  await once(server, 'listening')
  await removeStaleFolders(parent)
  const left = [path.basename(listening), `tunery-vllm-${process.pid}-mine`, 'tunery-vllm-x', 'other']
  assert.deepEqual(readdirSync(parent).sort(), left.sort(), 'one of another container answers')
  server.close()
  rmSync(parent, { recursive: true })
})
