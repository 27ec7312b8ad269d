// When an exported file agrees with the trainer, and when it does not.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { type Answers, compareAnswers } from '../../server/features/exports/verdict.ts'

const row = (
  answer_tokens: number[],
  log_probabilities = answer_tokens.map(() => -0.5),
  prompt_tokens: number[] | null = [1, 2, 3],
) => ({ messages: [{ role: 'user', content: 'x' }], prompt_tokens, answer_tokens, answer: 'x', log_probabilities })
const answers = (...rows: Answers['rows']): Answers => ({ version: 2, rows })
const reference = answers(row([10, 11, 12, 2]), row([20, 21, 22, 2]))
const four = [-0.5, -0.5, -0.5, -0.5]
const verdict = (exported: Answers, quantization: string | null = 'Q8_0') =>
  compareAnswers(reference, exported, 'test', quantization)

test('equal answers agree, with their figures', () => {
  assert.deepEqual(verdict(reference), {
    agrees: true,
    problem: null,
    runtime: 'test',
    prompts: 2,
    tokens: 8,
    identical: 1,
    matching_tokens: 1,
    log_probability_difference: 0,
  })
})

test('other prompts, probabilities, answers or missing ends are each reported as such', () => {
  const cases: [string, Answers, RegExp | null][] = [
    [
      'another template',
      answers(row([10, 11, 12, 2], undefined, [1, 9, 2, 3]), row([20, 21, 22, 2])),
      /other tokens than in training, for 1 of 2/,
    ],
    [
      'a template that writes the time',
      answers(row([10, 11, 12, 2], undefined, null), row([20, 21, 22, 2], undefined, null)),
      null,
    ],
    ['some rounding', answers(row([10, 11, 12, 2], [-0.6, -0.5, -0.4, -0.5]), row([20, 21, 22, 2])), null],
    ['too much of it', answers(row([10, 11, 12, 2], [-2, -2, -2, -2]), row([20, 21, 22, 2])), /0\.750 away.*0\.15/],
    [
      'no numbers',
      answers(row([10, 11, 12, 2], [null as never, -0.5, -0.5, -0.5]), row([20, 21, 22, 2])),
      /away from the trainer's/,
    ],
    ['fewer numbers', answers(row([10, 11, 12, 2], [-0.5]), row([20, 21, 22, 2])), /away from the trainer's/],
    ['a near tie', answers(row([10, 99, 99, 99], four.with(1, -0.55)), row([20, 21, 22, 2])), null],
    [
      'a runtime that loses its way',
      answers(row([10, 99, 99, 99], four), row([20, 21, 22, 2])),
      /does not write what it itself finds likeliest, in 1 of 2/,
    ],
    ['one that never finds it', answers(row([99, 99, 99, 99]), row([98, 98, 98], four)), /share 0 % of their tokens/],
    ['no end', answers(row([10, 11, 12, 7, 7], four), row([20, 21, 22, 2, 7], four)), /does not stop/],
    ['a prompt without an answer', answers(row([10, 11, 12, 2])), /answered 1 of 2/],
  ]
  for (const [name, exported, pattern] of cases) {
    const { agrees, problem } = verdict(exported)
    assert.equal(agrees, pattern === null, `${name}: ${problem}`)
    if (pattern) assert.match(problem!, pattern, name)
  }
})

test('where the trainer finds two tokens as likely, the other one is no disagreement; elsewhere it is', () => {
  const diverging = (margin: number, off: number) => {
    const unsure = [-0.7, -0.7, -0.7, -0.7]
    const margins = [9, margin, 9, 9]
    const expected = [row([10, 11, 12, 2], unsure), row([20, 21, 22, 2], unsure)].map((one) => ({ ...one, margins }))
    const actual = [row([10, 98, 99, 2], unsure.with(3, -0.7 - off)), row([20, 98, 99, 2], unsure)]
    return compareAnswers(answers(...expected), answers(...actual), 'test', 'F32')
  }
  // 2 of the 8 tokens are the same, which is too few.
  assert.match(diverging(0.03, 0).problem!, /share 25 % of their tokens/)
  assert.match(diverging(0.03, 0.014).problem!, /share 25 % of their tokens/)
  const { agrees, matching_tokens, identical } = diverging(0.03, 0.016)
  assert.deepEqual([agrees, matching_tokens, identical], [true, 1, 0])
  // One place that is far off makes no tie of any margin: what the bound of the precision explains is the most.
  assert.equal(diverging(0.039, 0.1).agrees, true)
  assert.match(diverging(0.041, 0.1).problem!, /share 25 % of their tokens/)
})

test('fewer bits allow larger differences, and full precision almost none', () => {
  const off = (nats: number) =>
    answers(
      ...reference.rows.map((row) => ({
        ...row,
        log_probabilities: row.log_probabilities.map((value) => value! - nats),
      })),
    )
  for (const [quantization, most] of Object.entries({
    F32: 0.02,
    F16: 0.1,
    fp16: 0.1,
    Q8_0: 0.15,
    Q5_K_M: 0.4,
    Q4_K_M: 0.8,
    IQ4_NL: 0.8,
    int4: 0.8,
    Q2_K: 1.2,
  })) {
    assert.equal(verdict(off(0.99 * most), quantization).agrees, true, quantization)
    assert.equal(verdict(off(1.01 * most), quantization).agrees, false, quantization)
  }
  assert.equal(verdict(off(0.2), null).agrees, false, 'a folder for transformers is in 16 bits or more')
})
