// The curves of a job's page, made of its events.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { JobEvent } from '../../../sdk/index.ts'
import { RunReader, runOf, smooth, thin } from '../../../web/pages/job/run.ts'

/** Events at these seconds. */
const events = (...entries: [seconds: number, type: JobEvent['type'], data: Record<string, unknown>][]): JobEvent[] =>
  entries.map(([seconds, type, data], index) => ({
    type,
    message: '',
    seq: index + 1,
    created_at: new Date(1e12 + seconds * 1000).toISOString(),
    data,
  }))
const steps = (points: { step: number }[]) => points.map(({ step }) => step)

test('every step of a batch of losses is drawn, its time spread over the time since those before', () => {
  const { loss } = runOf(
    events(
      [0, 'status', { phase: 'training' }],
      [1, 'metrics', { step: 1, loss: 5, losses: [[1, 5]] }],
      [5, 'metrics', { step: 5, loss: 1, losses: [2, 3, 4, 5].map((step) => [step, 6 - step]) }],
    ),
  )
  assert.deepEqual(
    loss,
    [1, 2, 3, 4, 5].map((step) => ({ step, seconds: step, value: 6 - step })),
  )
})

test('a resumed job draws the steps that it trains again once, and its pause takes no time', () => {
  const run = runOf(
    events(
      [0, 'status', { phase: 'training' }],
      [2, 'metrics', { step: 2, loss: 8, losses: [1, 2].map((step) => [step, 8]) }],
      [4, 'metrics', { step: 4, loss: 8, validation_loss: 7, losses: [3, 4].map((step) => [step, 8]) }],
      [5, 'status', { status: 'paused' }],
      [1000, 'status', { status: 'running', attempt: 2 }],
      [1001, 'status', { phase: 'training' }],
      [1002, 'metrics', { step: 3, loss: 9, losses: [[3, 9]] }],
      [1003, 'metrics', { step: 4, loss: 9, validation_loss: 6, best: true, losses: [[4, 9]] }],
    ),
  )
  assert.deepEqual(steps(run.loss), [1, 2, 3, 4])
  assert.deepEqual(run.loss.at(-1), { step: 4, seconds: 6, value: 9 })
  assert.deepEqual(run.figures.validation_loss, [{ step: 4, seconds: 6, value: 6 }])
  assert.equal(run.best?.value, 6)
  assert.equal(run.attempt, 2)
})

test('answers are kept by prompt and step, and those of steps trained again are replaced', () => {
  const sample = (step: number, answer: string, content = 'hi') =>
    [step, 'sample', { step, answer, base: 'base', prompt: [{ role: 'user', content }] }] as const
  const { samples } = runOf(
    events([...sample(1, 'a')], [...sample(2, 'b')], [...sample(2, 'other', 'ho')], [...sample(2, 'c')]),
  )
  assert.deepEqual(
    samples.map(({ answers }) => answers),
    [
      [
        { step: 1, answer: 'a' },
        { step: 2, answer: 'c' },
      ],
      [{ step: 2, answer: 'other' }],
    ],
  )
})

test('events that are not as expected are passed over', () => {
  const run = runOf(
    events(
      [0, 'metrics', { step: 'one', loss: 1 }],
      [1, 'metrics', { step: 1, loss: null, losses: 'many' }],
      [2, 'metrics', { step: 2, loss: 2, losses: [null, [], [2, 2], ['3', 3]] }],
      [3, 'sample', { step: 2, prompt: 'text' }],
      [4, 'checkpoint', {}],
    ),
  )
  assert.deepEqual(steps(run.loss), [2])
  assert.equal(run.samples.length, 0)
  assert.equal(run.checkpoints, 1)
})

test('smoothing keeps a constant as it is from the first value on, and none changes nothing', () => {
  for (const value of smooth([3, 3, 3, 3], 0.9)) assert.ok(Math.abs(value - 3) < 1e-9)
  assert.deepEqual(smooth([1, 5, 2], 0), [1, 5, 2])
  const [first, second] = smooth([0, 10], 0.5)
  assert.equal(first, 0)
  assert.ok(Math.abs(second! - 10 / 1.5) < 1e-9)
})

test('events that come one by one say the same as all at once', () => {
  const all = events(
    [0, 'status', { phase: 'training' }],
    [1, 'metrics', { step: 1, epoch: 1, loss: 5, losses: [[1, 5]] }],
    [2, 'sample', { step: 1, prompt: [{ role: 'user', content: 'hi' }], answer: 'a', base: 'b' }],
    [3, 'metrics', { step: 2, epoch: 2, loss: 4, losses: [[2, 4]] }],
  )
  const reader = new RunReader()
  const last = all.map((event) => reader.read([event])).at(-1)
  assert.deepEqual(last, runOf(all))
})

test('a long line is thinned without losing its spikes or its end', () => {
  const points = Array.from({ length: 10_000 }, (_, step) => ({ step, seconds: step, value: step === 7777 ? 99 : 1 }))
  const kept = thin(points, 100)
  assert.ok(kept.length <= 100, `${kept.length} points`)
  assert.ok(kept.some(({ value }) => value === 99))
  assert.equal(kept.at(-1), points.at(-1))
  assert.deepEqual(
    steps([...kept]),
    steps([...kept]).sort((one, other) => one - other),
  )
  assert.equal(thin(points.slice(0, 50), 100).length, 50)
})

test('rewards and each grader, and the best held-out reward; steps that are taken again replace what was drawn', () => {
  const { figures, graders, best } = runOf(
    events(
      [1, 'metrics', { step: 0, validation_reward: 0.1, validation_graders: { rule: 0.1 }, best: true }],
      [
        2,
        'metrics',
        { step: 1, loss: 0.2, reward: 0.3, graders: { rule: 0.2, style: 0.4 }, watched_graders: { vowels: 0.6 } },
      ],
      [3, 'metrics', { step: 2, loss: 0.1, reward: 0.9, graders: { rule: 0.8, style: 1 } }],
      [4, 'metrics', { step: 2, validation_reward: 0.7, validation_graders: { rule: 0.7 }, best: true }],
      [5, 'metrics', { step: 2, loss: 0.1, reward: 0.5, graders: { rule: 0.5, style: 0.5 } }],
    ),
  )
  const values = (points: { step: number; value: number }[]) => points.map(({ step, value }) => [step, value])
  assert.deepEqual(values(figures.reward), [
    [1, 0.3],
    [2, 0.5],
  ])
  assert.deepEqual(Object.keys(graders), ['rule', 'style', 'vowels (watched)'])
  assert.deepEqual(values(graders.rule!.validation), [
    [0, 0.1],
    [2, 0.7],
  ])
  assert.deepEqual(values(graders.style!.training), [
    [1, 0.4],
    [2, 0.5],
  ])
  assert.deepEqual([best!.step, best!.value], [2, 0.7])
})
