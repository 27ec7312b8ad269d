// Drafts for speculative decoding: where they come from, what they learn, and how long they are.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { separator } from '../../../engine/models/draft-file.ts'
import { continuation } from '../../../engine/sampling/drafts/answer-index.ts'
import { createDrafting, type Drafter } from '../../../engine/sampling/drafts/drafter.ts'
import { draftTokensFor, planDrafts } from '../../../engine/sampling/drafts/plan.ts'
import { createStepCosts } from '../../../engine/sampling/drafts/step-costs.ts'

const endToken = 0

/** The index that the trainer makes, sorted plainly. */
function indexOf(answers: readonly (readonly number[])[]) {
  const tokens = answers.flatMap((answer) => [separator, ...answer])
  const compare = (a: number, b: number): number => {
    for (let at = 0; ; at++) {
      const [left, right] = [tokens[a + at] ?? -1, tokens[b + at] ?? -1]
      if (left !== right || left < 0) return left - right
    }
  }
  const suffixes = tokens.map((_, at) => at).sort(compare)
  return { tokens: Uint32Array.from(tokens), suffixes: Uint32Array.from(suffixes) }
}

const drafterOf = (
  drafting: ReturnType<typeof createDrafting>,
  { account = 'a', prompt = [900, 901], answer = [] as number[] } = {},
) => drafting.drafter({ account, prompt, answer, greedy: true, endsAt: (token) => token === endToken })

const draft = (drafter: Drafter, max = 12) => drafter.propose(max).tokens

/** Generates `answer` with drafts, as a runner would. Returns the number of steps. */
function generate(drafter: Drafter, answer: readonly number[]): number {
  let steps = 0
  for (let at = 0; at < answer.length; steps++) {
    const proposed = draft(drafter)
    let accepted = 0
    while (at < answer.length) {
      const token = answer[at++]!
      drafter.append(token)
      if (proposed[accepted++] !== token) break
    }
  }
  drafter.finish()
  return steps
}

test('every place where tokens occur in the training answers counts for what may follow', () => {
  const answers = indexOf([
    [5, 6, 7, endToken],
    [5, 6, 8, endToken],
    [5, 6, 8, endToken],
    [6, 8],
  ])
  assert.deepEqual(continuation(answers, [separator], 1), { token: 5, share: 3 / 4, places: 4 })
  assert.deepEqual(continuation(answers, [9, 5, 6], 2), { token: 8, share: 2 / 3, places: 3 })
  assert.deepEqual(continuation(answers, [6, 7], 2), { token: endToken, share: 1, places: 1 })
  assert.equal(continuation(answers, [7, 6], 2), null)
  assert.equal(continuation(answers, [6, 8], 2)?.token, endToken, 'an answer never continues with the next one')
  const random = Array.from({ length: 40 }, (_, row) => Array.from({ length: 30 }, (_, at) => (row * at * 7) % 5))
  const index = indexOf(random)
  for (const length of [1, 2, 5])
    for (const row of random) {
      const tail = row.slice(10, 10 + length)
      const places = random.flatMap((other) =>
        other.flatMap((_, at) => (tail.every((token, offset) => other[at + offset] === token) ? [at] : [])),
      )
      assert.equal(continuation(index, tail, length)!.places, places.length)
    }
})

test('an answer like those of the training is drafted from its start on', () => {
  const answers = indexOf(Array.from({ length: 20 }, (_, row) => [10, 11, 12, 100 + row, 13, 14, 15, 16, endToken]))
  const drafter = drafterOf(createDrafting(() => answers))
  assert.deepEqual(draft(drafter).slice(0, 3), [10, 11, 12])
  for (const token of [10, 11, 12, 555]) drafter.append(token)
  drafter.append(13)
  assert.deepEqual(draft(drafter), [], 'a match of one token is too little')
  drafter.append(14)
  assert.deepEqual(draft(drafter), [15, 16], 'and it stops before the token that ends the answer')
  assert.deepEqual(draft(drafter, 1), [15])
  const plain = drafterOf(createDrafting(() => null))
  assert.deepEqual(draft(plain), [])
})

test('what stands in the prompt is drafted, and what never comes true is not drafted for long', () => {
  const drafting = createDrafting(() => null)
  const prompt = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4]
  assert.deepEqual(draft(drafterOf(drafting, { prompt })).slice(0, 3), [5, 6, 7])
  const wrong = { prompt, answer: [] }
  let proposals = 0
  for (let round = 0; round < 200; round++) {
    const drafter = drafterOf(drafting, wrong)
    if ((drafter.propose(12).reach[0] ?? 0) > 0.5) proposals++
    drafter.append(700)
  }
  assert.ok(proposals < 20, `${proposals} of 200`)
})

test('a repeated answer is drafted from the recent ones, of the same account alone', () => {
  const drafting = createDrafting(() => null)
  const answer = Array.from({ length: 40 }, (_, at) => 100 + at)
  const first = generate(drafterOf(drafting), answer)
  assert.equal(first, 40)
  for (let round = 0; round < 5; round++) generate(drafterOf(drafting), answer)
  assert.ok(generate(drafterOf(drafting), answer) < 15)
  assert.equal(generate(drafterOf(drafting, { account: 'b' }), answer), 40)
})

test('drafts are as long as they pay: with cheap steps, with few sequences, with likely tokens', () => {
  const likely = Array.from({ length: 12 }, (_, at) => 0.95 ** (at + 1))
  const cheap = (tokens: number) => 10 + tokens
  const dear = (tokens: number) => tokens
  assert.equal(planDrafts([likely], cheap), 12)
  assert.equal(planDrafts([likely], dear), 0, 'a token that costs as much as a step is not worth a risk')
  assert.equal(planDrafts([[0.2, 0.05]], cheap), 1)
  assert.equal(planDrafts([[], []], cheap), 0)
  const alone = planDrafts([likely], (tokens) => 10 + 5 * tokens)
  const beside = planDrafts([likely, [], []], (tokens) => 10 + 5 * tokens)
  assert.ok(beside < alone, `${beside} and ${alone}: the others are computed as long`)
  assert.equal(draftTokensFor(1, cheap), 40)
  assert.equal(draftTokensFor(4, cheap), 10)
  assert.equal(draftTokensFor(32, dear), 0)
})

test('costs of steps are learned, for those measured and those between them', () => {
  const costs = createStepCosts()
  assert.ok(costs.cost(9) > costs.cost(1), 'before any is measured')
  for (let round = 0; round < 50; round++) {
    costs.record(1, 10)
    costs.record(5, 12)
    costs.record(13, 40)
  }
  const relative = (tokens: number) => costs.cost(tokens) / costs.cost(1)
  assert.ok(Math.abs(relative(5) - 1.2) < 0.05, String(relative(5)))
  assert.ok(Math.abs(relative(9) - 2.6) < 0.2, String(relative(9)))
  for (let round = 0; round < 30; round++)
    for (const [tokens, ms] of [
      [1, 20],
      [5, 24],
    ] as const)
      costs.record(tokens, ms)
  assert.ok(Math.abs(relative(13) - 4) < 0.5, 'a slower machine is slower for all')
  assert.ok(costs.isFresh(5))
  for (let round = 0; round < 100; round++) costs.record(1, 20)
  assert.ok(!costs.isFresh(5) && costs.isFresh(1))
  costs.record(1, 10_000)
  assert.ok(relative(5) > 1, 'one interrupted step means nothing')
})
