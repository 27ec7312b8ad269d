// Advantages of answers within their group, and what tokens weigh, by the names of the field.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { policyLosses } from '../../contract/hyperparameters.ts'
import { advantagesOf, isEqual, tokenWeight } from '../../server/features/jobs/reinforcement/advantages.ts'
import { divergence } from '../../server/features/jobs/reinforcement/divergence.ts'
import { shuffled } from '../../server/features/jobs/reinforcement/prompts.ts'
import { dataOf, figuresOf, type GradedGroup } from '../../server/features/jobs/reinforcement/rollouts.ts'
import { learningRate } from '../../server/features/jobs/reinforcement/schedule.ts'

const near = (actual: number[], expected: number[]) => {
  assert.equal(actual.length, expected.length)
  for (const [index, value] of actual.entries())
    assert.ok(Math.abs(value - expected[index]!) < 1e-5, `${actual} is not ${expected}`)
}

test('advantages are relative to the group, each as its paper has it', () => {
  const scores = [1, 0, 0, 0]
  near(advantagesOf(scores, 'dr_grpo'), [0.75, -0.25, -0.25, -0.25])
  near(advantagesOf(scores, 'rloo'), [1, -1 / 3, -1 / 3, -1 / 3])
  const deviation = Math.sqrt(3) / 4
  for (const loss of ['grpo', 'dapo', 'gspo', 'cispo'] as const)
    near(advantagesOf(scores, loss), [0.75 / deviation, ...Array(3).fill(-0.25 / deviation)])
  for (const loss of policyLosses)
    near([advantagesOf([0.1, 0.4, 0.9], loss).reduce((sum, value) => sum + value, 0)], [0])
})

test('a group whose scores are the same teaches nothing, nor does one answer', () => {
  assert.ok(isEqual([0.3, 0.3, 0.3]) && isEqual([1]) && isEqual([]))
  assert.ok(!isEqual([0, 0.01]))
})

const answer = (tokens: number, score: number | null) => ({
  tokens: Array.from({ length: tokens }, (_, index) => index),
  logprobs: Array<number>(tokens).fill(-1),
  thought_tokens: 0,
  message: { role: 'assistant', content: `${tokens}` },
  watched: {},
  text: `${tokens}`,
  tool_calls: [],
  cut: tokens === 4,
  score,
  graders: {},
  error: score === null ? 'failed' : null,
})
const groups: GradedGroup[] = [
  { row: 1, prompt: [7, 8], answers: [answer(1, 1), answer(3, 0), answer(2, null)] },
  { row: 2, prompt: [9], answers: [answer(4, 0.5), answer(4, 0.5)] },
]

test('token losses are weighed without a bias by length where the paper has none', () => {
  const batch = { answers: 2, tokens: 4, max_tokens: 8 }
  assert.equal(tokenWeight('dapo', 3, batch), 1 / 4)
  assert.equal(tokenWeight('dapo', 1, batch), tokenWeight('cispo', 3, batch))
  assert.equal(tokenWeight('grpo', 3, batch), 1 / 6)
  assert.equal(tokenWeight('gspo', 1, batch), 1 / 2)
  assert.equal(tokenWeight('dr_grpo', 3, batch), 1 / 16)
  assert.equal(tokenWeight('rloo', 3, batch), 1 / 2)
})

test('what an environment said is context: no token of it is trained, none is counted', () => {
  // Two tokens were sampled, then three were said, then one was sampled.
  const episode = { context: [[2, 5] as [number, number]], messages: [], turns: 2, environment_ms: 10, given: {} }
  const played = { ...answer(6, 1), logprobs: [-1, -2, -3], episode }
  const group = { row: 1, prompt: [7, 8], answers: [played, answer(2, 0)] }
  const [first, second] = dataOf([group], 'dapo', 8)
  assert.deepEqual(first!.ids, [7, 8, 0, 1, 2, 3, 4, 5])
  assert.deepEqual([first!.start, first!.trained], [undefined, [2, 3, 7]])
  assert.equal(first!.weights, 1 / 5)
  assert.deepEqual([second!.start, second!.trained], [2, undefined])
  assert.equal(figuresOf({ groups: [group], grader_ms: [] }).answer_tokens, 2.5)
})

test('the divergence of a token is that of the two distributions, and 0 for the same', () => {
  const [tuned, base] = [
    [0.7, 0.2, 0.1],
    [0.5, 0.3, 0.2],
  ] as const
  const exact = tuned.reduce((sum, p, token) => sum + p * Math.log(p / base[token]!), 0)
  // As often as the tuned model samples each token.
  const sampled = tuned.flatMap((p, token) => Array<number>(Math.round(p * 10)).fill(token))
  const logs = (of: readonly number[]) => [sampled.map((token) => Math.log(of[token]!))]
  near([divergence(logs(tuned), logs(base))!], [exact])
  assert.equal(divergence(logs(tuned), logs(tuned)), 0)
  assert.equal(divergence([[]], [[]]), null)
})

test('answers without a score and groups without a difference are left out, and counted', () => {
  const data = dataOf(groups, 'dapo', 8)
  assert.deepEqual(
    data.map(({ ids, start, weights, group }) => [ids, start, weights, group]),
    [
      [[7, 8, 0], 2, 1 / 4, 0],
      [[7, 8, 0, 1, 2], 2, 1 / 4, 0],
    ],
  )
  assert.ok(data[0]!.advantages > 0 && data[1]!.advantages < 0)
  const figures = figuresOf({ groups, grader_ms: [10, 30] })
  assert.equal(figures.reward, 0.5)
  assert.equal(figures.grader_failures, 1)
  assert.equal(figures.equal_share, 0.5)
  assert.equal(figures.cut_share, 2 / 5)
  assert.equal(figures.grader_seconds, 0.02)
  assert.deepEqual(dataOf(groups.slice(1), 'grpo', 8), [])
})

test('the order of prompts has each once, is the same for a seed and another for another', () => {
  const order = shuffled(50, 'a')
  assert.deepEqual(
    order.toSorted((a, b) => a - b),
    Array.from({ length: 50 }, (_, index) => index + 1),
  )
  assert.deepEqual(shuffled(50, 'a'), order)
  assert.notDeepEqual(shuffled(50, 'b'), order)
})

test('the learning rate rises, then falls to 0 along a cosine', () => {
  near(
    [0, 1, 2, 6, 10].map((step) => learningRate(step, 10, 1, 0.2)),
    [1 / 3, 2 / 3, 1, 0.5, 0],
  )
})
