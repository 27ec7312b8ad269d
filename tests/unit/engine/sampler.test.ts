// Choosing tokens: what each parameter does to the odds.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createLogprobs, logSumExp } from '../../../engine/sampling/logprobs.ts'
import { createSampler, createTop, type SamplingParams } from '../../../engine/sampling/sampler.ts'
import { createSpeculation } from '../../../engine/sampling/speculative.ts'
import { plainSampling } from './plain-sampling.ts'

const sampled: SamplingParams = { ...plainSampling, temperature: 1, top_k: 100, top_p: 1, seed: 1 }
const logits = (...values: number[]) => Float32Array.from(values)

/** How often each token is chosen first, out of 20,000. */
function shares(params: Partial<SamplingParams>, values: number[], mask: Uint32Array | null = null): number[] {
  const count = 20_000
  const counts = values.map(() => 0)
  const sampler = createSampler({ ...sampled, ...params }, [])
  for (let round = 0; round < count; round++) counts[sampler.sample(logits(...values), mask)]!++
  return counts.map((each) => each / count)
}

function assertShares(actual: number[], expected: number[]) {
  const sum = expected.reduce((a, b) => a + b)
  for (const [token, share] of actual.entries())
    assert.ok(
      Math.abs(share - expected[token]! / sum) < 0.015,
      `token ${token}: ${share}, not ${expected[token]! / sum}`,
    )
}

test('tokens come as often as their probability says, at any temperature', () => {
  const values = [0, 1, 2, -1]
  assertShares(shares({}, values), values.map(Math.exp))
  assertShares(
    shares({ temperature: 0.5 }, values),
    values.map((value) => Math.exp(value / 0.5)),
  )
})

test('top_k, top_p and min_p leave out what they say, and never the likeliest', () => {
  const values = [Math.log(0.5), Math.log(0.3), Math.log(0.15), Math.log(0.05)]
  assertShares(shares({ top_k: 2 }, values), [0.5, 0.3, 0, 0])
  assertShares(shares({ top_p: 0.6 }, values), [0.5, 0.3, 0, 0])
  assertShares(shares({ top_p: 0 }, values), [1, 0, 0, 0])
  assertShares(shares({ min_p: 0.2 }, values), [0.5, 0.3, 0.15, 0])
  assertShares(shares({ min_p: 1 }, values), [1, 0, 0, 0])
})

test('the same seed gives the same tokens, another seed others, no seed never the same', () => {
  const run = (seed: number | null) => {
    const sampler = createSampler({ ...sampled, seed }, [])
    return Array.from({ length: 50 }, () => sampler.sample(logits(0, 0, 0, 0, 0, 0, 0, 0), null)).join('')
  }
  assert.equal(run(7), run(7))
  assert.notEqual(run(7), run(8))
  assert.notEqual(run(0), run(2 ** 40))
  assert.notEqual(run(null), run(null))
  assert.equal(run(-3), run(-3))
})

test('temperature 0 takes the likeliest, the first of equals', () => {
  const sampler = createSampler(plainSampling, [])
  assert.equal(sampler.sample(logits(1, 3, 3, 2), null), 1)
})

test('presence counts once and frequency each time, of the answer alone; repetition looks at the prompt too', () => {
  const greedy = (params: Partial<SamplingParams>, prompt: number[], values: number[], steps: number) => {
    const sampler = createSampler({ ...plainSampling, ...params }, prompt)
    return Array.from({ length: steps }, () => sampler.sample(logits(...values), null))
  }
  assert.deepEqual(greedy({ presence_penalty: 1.5 }, [0], [2, 1, 0], 3), [0, 1, 0])
  assert.deepEqual(greedy({ frequency_penalty: 0.6 }, [0], [2, 1, 0], 5), [0, 0, 1, 0, 1])
  assert.deepEqual(greedy({ repetition_penalty: 2 }, [0], [3, 2, 1], 3), [1, 0, 0])
  // Below zero, dividing would make a token likelier.
  assert.deepEqual(greedy({ repetition_penalty: 2 }, [0], [-1, -1.5, -9], 1), [1])
})

test('a bias is added before anything else; a token outside the vocabulary has none', () => {
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

test('a mask keeps out what it does not name, at temperature 0 and above', () => {
  const mask = Uint32Array.of(0b1010)
  assert.equal(createSampler(plainSampling, []).sample(logits(9, 1, 8, 2), mask), 3)
  assertShares(shares({}, [9, 0, 9, 0], mask), [0, 1, 0, 1])
  assert.equal(createSampler(sampled, []).sample(logits(9, 1), Uint32Array.of(0)), -1)
})

test('the largest are found in falling order whatever their order was', () => {
  const values = Float32Array.from({ length: 5000 }, (_, index) => Math.sin(index * 12.9898) * 1000)
  const { values: found, tokens, count } = createTop(50).of(values, null)
  const sorted = [...values].sort((a, b) => b - a).slice(0, 50)
  assert.equal(count, 50)
  assert.deepEqual([...found], sorted)
  for (const [place, token] of tokens.entries()) assert.equal(values[token], found[place])
})

test('log-probabilities are those of the model, untouched by penalties, bias and temperature', () => {
  const values = [2, 1, 0]
  const read = createLogprobs(2).read(logits(...values))
  const sampler = createSampler({ ...sampled, temperature: 0.1, logit_bias: [[1, 100]] }, [])
  const token = sampler.sample(logits(...values), null)
  const place = read(token)
  const total = Math.log(values.reduce((sum, value) => sum + Math.exp(value), 0))
  assert.equal(place.token, 1)
  assert.ok(Math.abs(place.logprob! - (1 - total)) < 1e-6)
  assert.deepEqual(
    place.top.map((each) => each.token),
    [0, 1],
  )
  assert.ok(Math.abs(logSumExp(logits(1000, 1000)) - (1000 + Math.log(2))) < 1e-3)
})

test('a guess follows the latest place where the last tokens stood before; fewer of them are enough while guesses are right', () => {
  const speculation = createSpeculation((token) => token === 0)
  assert.deepEqual(speculation.guess([1, 2, 3, 4, 9, 9, 1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4], 12), [5, 6, 7, 8, 1, 2, 3])
  assert.deepEqual(speculation.guess([1, 2, 3, 4, 5, 6, 1, 2, 3, 4], 2), [5, 6])
  assert.deepEqual(speculation.guess([1, 2, 3, 4, 5], 12), [])
  assert.deepEqual(
    speculation.guess([1, 2, 3, 4, 5, 0, 7, 1, 2, 3, 4], 12),
    [5],
    'what came after an end is another answer',
  )
  assert.deepEqual(speculation.guess([7, 2, 3, 4, 5, 6, 1, 2, 3], 12), [], 'two alone are not enough at first')
  speculation.checked(7, 7)
  assert.deepEqual(speculation.guess([7, 2, 3, 4, 5, 6, 1, 2, 3], 12), [4, 5, 6, 1, 2, 3])
  const long = [1, 2, 3, 4, ...Array.from({ length: 20 }, (_, index) => 10 + index), 1, 2, 3, 4]
  assert.equal(speculation.guess(long, 12).length, 7)
  speculation.checked(7, 7)
  assert.equal(speculation.guess(long, 12).length, 11, 'longer ones once several in a row were right')
  speculation.checked(8, 0)
  assert.deepEqual(speculation.guess([7, 2, 3, 4, 5, 6, 1, 2, 3], 12), [])
  for (let round = 0; round < 2; round++) speculation.checked(8, 0)
  assert.deepEqual(
    speculation.guess([1, 2, 3, 4, 5, 6, 1, 2, 3, 4], 12),
    [],
    'and after many that were wrong it pauses',
  )
})
