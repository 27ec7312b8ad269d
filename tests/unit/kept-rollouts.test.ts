// What is kept of the answers of a job that learns from graders: bounded, spread over its steps, failures among them.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { rolloutsKept } from '../../contract/job-history.ts'
import { isKept, keptOf } from '../../server/features/jobs/reinforcement/kept.ts'
import type { GradedAnswer } from '../../server/features/jobs/reinforcement/rollouts.ts'
import { KeptRollouts } from '../../server/features/jobs/result.ts'

const answer = (score: number | null, text = 'yes'): GradedAnswer => ({
  tokens: [1, 2],
  logprobs: [-1, -1],
  thought_tokens: 0,
  message: { role: 'assistant', content: text },
  watched: {},
  text,
  tool_calls: [],
  cut: false,
  score,
  graders: { rule: { score, passed: score === 1, ...(score === null && { error: 'e'.repeat(9000) }) } },
  error: score === null ? 'e'.repeat(9000) : null,
})
const groups = (count: number, answers: GradedAnswer[]) =>
  Array.from({ length: count }, (_, index) => ({ row: index + 1, prompt: [1], answers }))

test('steps that are kept are bounded, evenly spread, with the first and the last', () => {
  for (const total of [1, 2, 199, 200, 201, 400, 5000]) {
    const kept = Array.from({ length: total }, (_, index) => index + 1).filter((step) => isKept(step, total))
    assert.ok(kept.length <= rolloutsKept.steps, `${kept.length} of ${total}`)
    assert.ok(kept.length >= Math.min(total, rolloutsKept.steps) / 2, `${kept.length} of ${total}`)
    assert.deepEqual([kept[0], kept.at(-1)], [1, total])
    const gaps = kept.slice(1).map((step, index) => step - kept[index]!)
    assert.ok(Math.max(0, ...gaps) <= Math.ceil(total / (rolloutsKept.steps - 2)), `${gaps}`)
  }
})

test('prompts, answers and texts are bounded; figures are of all answers', () => {
  const long = answer(1, 'x'.repeat(50_000))
  const kept = keptOf(3, 'training', groups(100, Array(64).fill(long)))
  assert.equal(kept.groups.length, rolloutsKept.prompts)
  for (const group of kept.groups) {
    assert.equal(group.answers.length, rolloutsKept.answers)
    assert.equal(group.answer_count, 64)
  }
  assert.deepEqual(kept.figures, { reward: 1, prompts: 100, answers: 6400, failures: 0 })
  const most = rolloutsKept.prompts * rolloutsKept.answers * (rolloutsKept.characters + 1000)
  assert.ok(JSON.stringify(kept).length < most)
  assert.deepEqual(KeptRollouts.parse(kept), kept)
})

test('a prompt whose grader failed is among those that are kept, with the reason cut; its answer has no score', () => {
  const all = groups(10, [answer(0), answer(1)])
  all[8]!.answers = [answer(1), answer(null)]
  const { figures, groups: shown } = keptOf(3, 'validation', all)
  assert.deepEqual(
    shown.map(({ row }) => row),
    [1, 2, 3, 9],
  )
  assert.deepEqual(figures, { reward: 10 / 19, prompts: 10, answers: 20, failures: 1 })
  const failed = shown[3]!.answers[1]!
  assert.equal(failed.score, null)
  assert.equal(failed.error!.length, 500)
  assert.equal(failed.graders.rule!.error!.length, 500)
  assert.equal(keptOf(3, 'training', groups(1, [answer(null)])).figures.reward, null)
})
