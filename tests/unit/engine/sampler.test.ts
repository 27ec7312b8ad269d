// Sampling: how each parameter changes the odds; log-probabilities.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createLogprobReader, logSumExp } from '../../../engine/sampling/logprobs.ts'
import { createSampler, createTopK, type SamplingParams } from '../../../engine/sampling/sampler.ts'
import { plainSampling } from './plain-sampling.ts'

const sampled: SamplingParams = { ...plainSampling, temperature: 1, top_k: 100, top_p: 1, seed: 1n }
const logits = (...values: number[]) => Float32Array.from(values)

/** Share of each token among 20,000 samples. */
function shares(params: Partial<SamplingParams>, values: number[], mask: Uint32Array | null = null): number[] {
  const count = 20_000
  const counts = values.map(() => 0)
  const sampler = createSampler({ ...sampled, ...params }, [])
  for (let round = 0; round < count; round++) counts[sampler.sample(logits(...values), mask)]!++
  return counts.map((amount) => amount / count)
}

function assertShares(actual: number[], expected: number[]) {
  const sum = expected.reduce((a, b) => a + b)
  for (const [token, share] of actual.entries())
    assert.ok(
      Math.abs(share - expected[token]! / sum) < 0.015,
      `token ${token}: ${share}, not ${expected[token]! / sum}`,
    )
}

test('tokens are sampled by their probability, at any temperature', () => {
  const values = [0, 1, 2, -1]
  assertShares(shares({}, values), values.map(Math.exp))
  assertShares(
    shares({ temperature: 0.5 }, values),
    values.map((value) => Math.exp(value / 0.5)),
  )
})

test('top_k 0 samples the whole vocabulary, also where it is larger than a hundred, within the mask', () => {
  const values = Array.from({ length: 300 }, (_, token) => (token % 3 === 0 ? 1 : 0))
  const seen = shares({ top_k: 0, top_p: 0.1 }, values)
  const later = seen.slice(150).reduce((sum, share) => sum + share)
  assert.ok(Math.abs(later - 0.5) < 0.02, `${later} of the samples are in the second half`)
  const small = [Math.log(0.5), Math.log(0.3), Math.log(0.2)]
  assertShares(shares({ top_k: 0 }, small), [0.5, 0.3, 0.2])
  assertShares(shares({ top_k: 0 }, small, Uint32Array.of(0b110)), [0, 0.3, 0.2])
  assert.equal(createSampler({ ...sampled, top_k: 0 }, []).sample(logits(0, 0), Uint32Array.of(0)), -1)
})

test('top_k, top_p and min_p exclude the tokens they should, and never the likeliest', () => {
  const values = [Math.log(0.5), Math.log(0.3), Math.log(0.15), Math.log(0.05)]
  assertShares(shares({ top_k: 2 }, values), [0.5, 0.3, 0, 0])
  assertShares(shares({ top_p: 0.6 }, values), [0.5, 0.3, 0, 0])
  assertShares(shares({ top_p: 0 }, values), [1, 0, 0, 0])
  assertShares(shares({ min_p: 0.2 }, values), [0.5, 0.3, 0.15, 0])
  assertShares(shares({ min_p: 1 }, values), [1, 0, 0, 0])
})

test('the same seed gives the same tokens, another seed others, and no seed different ones each time', () => {
  const run = (seed: bigint | null) => {
    const sampler = createSampler({ ...sampled, seed }, [])
    return Array.from({ length: 50 }, () => sampler.sample(logits(0, 0, 0, 0, 0, 0, 0, 0), null)).join('')
  }
  assert.equal(run(7n), run(7n))
  assert.notEqual(run(7n), run(8n))
  assert.notEqual(run(0n), run(2n ** 40n))
  assert.notEqual(run(null), run(null))
  assert.equal(run(-3n), run(-3n))
  for (const seed of [2n ** 53n, 2n ** 62n, -(2n ** 63n)]) assert.notEqual(run(seed), run(seed + 1n))
})

test('temperature 0 takes the likeliest, the first of equals', () => {
  const sampler = createSampler(plainSampling, [])
  assert.equal(sampler.sample(logits(1, 3, 3, 2), null), 1)
})

test('presence and frequency penalties count the answer only, the repetition penalty the prompt too', () => {
  const greedy = (params: Partial<SamplingParams>, prompt: number[], values: number[], steps: number) => {
    const sampler = createSampler({ ...plainSampling, ...params }, prompt)
    return Array.from({ length: steps }, () => sampler.sample(logits(...values), null))
  }
  assert.deepEqual(greedy({ presence_penalty: 1.5 }, [0], [2, 1, 0], 3), [0, 1, 0])
  assert.deepEqual(greedy({ frequency_penalty: 0.6 }, [0], [2, 1, 0], 5), [0, 0, 1, 0, 1])
  assert.deepEqual(greedy({ repetition_penalty: 2 }, [0], [3, 2, 1], 3), [1, 0, 0])
  // A negative logit is multiplied: dividing would make the token likelier.
  assert.deepEqual(greedy({ repetition_penalty: 2 }, [0], [-1, -1.5, -9], 1), [1])
})

test('a bias is added first; a bias of a token outside the vocabulary is ignored', () => {
  const sampler = createSampler(
    {
      ...plainSampling,
      logit_bias: [
        [2, 100],
        [9, 100],
      ],
    },
    [],
  )
  assert.equal(sampler.sample(logits(5, 4, 0), null), 2)
  const forbidden = createSampler({ ...plainSampling, logit_bias: [[0, -100]] }, [])
  assert.equal(forbidden.sample(logits(5, 4, 0), null), 1)
})

test('a mask excludes the tokens it does not allow, at temperature 0 and above', () => {
  const mask = Uint32Array.of(0b1010)
  assert.equal(createSampler(plainSampling, []).sample(logits(9, 1, 8, 2), mask), 3)
  assertShares(shares({}, [9, 0, 9, 0], mask), [0, 1, 0, 1])
  assert.equal(createSampler(sampled, []).sample(logits(9, 1), Uint32Array.of(0)), -1)
})

test('top-k returns the largest logits in descending order, whatever the input order', () => {
  const values = Float32Array.from({ length: 5000 }, (_, index) => Math.sin(index * 12.9898) * 1000)
  const { values: found, tokens, count } = createTopK(50).find(values, null)
  const sorted = [...values].sort((a, b) => b - a).slice(0, 50)
  assert.equal(count, 50)
  assert.deepEqual([...found], sorted)
  for (const [rank, token] of tokens.entries()) assert.equal(values[token], found[rank])
})

test('log-probabilities are the model’s own, without penalties, bias or temperature', () => {
  const values = [2, 1, 0]
  const read = createLogprobReader(2).read(logits(...values))
  const sampler = createSampler({ ...sampled, temperature: 0.1, logit_bias: [[1, 100]] }, [])
  const token = sampler.sample(logits(...values), null)
  const position = read(token)
  const total = Math.log(values.reduce((sum, value) => sum + Math.exp(value), 0))
  assert.equal(position.token, 1)
  assert.ok(Math.abs(position.logprob! - (1 - total)) < 1e-6)
  assert.deepEqual(
    position.top.map((candidate) => candidate.token),
    [0, 1],
  )
  assert.ok(Math.abs(logSumExp(logits(1000, 1000)) - (1000 + Math.log(2))) < 1e-3)
})
