// Comparison of engine and trainer on made-up scores; tests/process/models.test.ts compares real models.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { compare, type Probe, type Scores } from '../../server/features/serving/fidelity/compare.ts'

const row = (tuned: number[], origin: number[]) => ({
  prompt: [{ role: 'user', content: 'q' }],
  tokens: [1, 2, 3, 4],
  targets: [2, 3],
  whole: true,
  tuned,
  origin,
})
const probe: Probe = { rows: [row([-0.1, -0.1], [-3, -5]), row([-0.2, -0.1], [-4, -2])] }
const scores = (logprobs: number[][], more: Partial<Scores['rows'][number]> = {}): Scores => ({
  rows: logprobs.map((logprob) => ({ prompt: [1, 2], logprobs: logprob, ends: true, ...more })),
  least_ms: 1,
})
const trained = [
  [-0.15, -0.1],
  [-0.2, -0.2],
]
const untrained = [
  [-3.1, -5.2],
  [-4.1, -2],
]

test('a model that changed as in training passes; the plain base, half of the change or NaN scores fail', () => {
  const good = compare(probe, scores(trained), scores(untrained))
  assert.equal(good.agrees, true)
  assert.deepEqual([good.rows, good.tokens], [2, 4])
  assert.match(compare(probe, scores(untrained), scores(untrained)).problem!, /do not follow the training/)
  const half = untrained.map((row) => row.map((value) => value / 2))
  assert.match(compare(probe, scores(half), scores(untrained)).problem!, /do not follow the training/)
  const nothing = untrained.map((row) => row.map(() => Number.NaN))
  assert.equal(compare(probe, scores(nothing), scores(untrained)).agrees, false)
})

test('a different chat template, a missing end token and a different base are each reported', () => {
  assert.match(
    compare(probe, scores(trained, { prompt: [1, 9, 9] }), scores(untrained)).problem!,
    /chat template or tokenizer/,
  )
  assert.match(compare(probe, scores(trained, { ends: false }), scores(untrained)).problem!, /ends an answer/)
  const other = untrained.map((row) => row.map((value) => value - 6))
  assert.match(compare(probe, scores(trained), scores(other)).problem!, /same base/)
  assert.equal(
    compare(probe, scores(trained, { prompt: [1, 7] }), scores(untrained)).agrees,
    true,
    'the last token of a prompt may merge with the answer',
  )
})
