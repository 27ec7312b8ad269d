// Learning from graders through the service: prompts, answers of the engine, scores, updates and a served model.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import type { JobEvent } from '../../contract/fine-tuning.ts'
import { figuresOf, learn, prompts } from '../support/reinforcement.ts'
import { startApp, type TestApp } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'

let app: TestApp
before(async () => {
  app = await startApp()
})
after(() => app.stop())

const rows = Array.from({ length: 8 }, (_, index) =>
  JSON.stringify({ messages: [{ role: 'user', content: `word ${index}?` }], letters: 'kvz' }),
).join('\n')
/** A quarter of the tiny base's answers have one of these. */
const letters = { type: 'regex', name: 'letters', input: '{{sample.output_text}}', pattern: '[kvz]', ignore_case: true }

test('prompts and a grader become a served model, with the figures of each step', { timeout: 400_000 }, async () => {
  const { body: dataset, status } = await app.upload(rows)
  assert.equal(status, 201, JSON.stringify(dataset))
  const { status: created, body } = await app.api('POST', '/fine-tuning/jobs', {
    model_id: tiny,
    dataset_id: dataset.id,
    config: {
      method_options: { objective: 'reinforcement', grader: letters, group_size: 16, max_tokens: 2, refill_rounds: 0 },
      training_config: { epochs: 2, batch_size: 4, learning_rate: 0.01, seed: 1 },
    },
  })
  assert.equal(created, 201, JSON.stringify(body))
  const events: JobEvent[] = []
  for await (const event of app.events(body.id)) events.push(event)
  const job = await app.job(body.id)
  assert.equal(job.status, 'completed', JSON.stringify(job.error))
  const steps = events.flatMap(({ type, data }) => (type === 'metrics' ? [data!] : []))
  assert.deepEqual(
    steps.map(({ step }) => step),
    [1, 2, 3, 4],
  )
  for (const step of steps) {
    assert.ok(Number(step.reward) > 0 && Number(step.reward) < 1, `reward ${step.reward}`)
    assert.ok(Number(step.probability_gap) < 0.1, `engine and trainer agree: ${step.probability_gap}`)
    assert.deepEqual(step.graders, { letters: step.reward })
    for (const name of [
      'entropy',
      'clipped_share',
      'equal_share',
      'distinct_share',
      'cut_share',
      'grader_seconds',
      'push_seconds',
    ])
      assert.equal(typeof step[name], 'number', name)
  }
  assert.equal(steps.at(-1)!.generated_tokens, 4 * 4 * 16 * 2)
  assert.ok(!events.some(({ data }) => data?.code === 'model_disagrees'), 'the engine serves what was trained')
  const request = { model: job.model, messages: [{ role: 'user', content: 'word 1?' }], max_tokens: 2 }
  assert.equal((await app.api('POST', '/chat/completions', request)).status, 200)
  const model = (await app.api('GET', `/fine-tuning/models/${job.model}`)).body
  assert.equal(model.lineage.steps.at(-1).objective, 'reinforcement')
})

const python = (source: string) => ({ type: 'python', name: 'code', source: `def grade(sample, item):\n    ${source}` })

test('answers that a grader fails on are counted and left out, and are no reward of 0', async () => {
  const grader = python('return 1.0 if not item["fails"] else item["nothing"]')
  const rows = prompts(4, (index) => ({ fails: index === 0 }))
  const id = await learn(app, rows, { grader, group_size: 4, grading: { error_share_max: 0.9 } }, { epochs: 1 })
  const [step] = await figuresOf(app, id)
  assert.equal(step!.reward, 1)
  assert.deepEqual(step!.graders, { code: 1 })
  assert.equal(step!.grader_failures, 4)
  assert.equal((await app.job(id)).status, 'completed')
})

test('a job whose grader fails too often stops with a sentence that says why', async () => {
  const rows = prompts(4)
  const id = await learn(app, rows, { grader: python('return item["nothing"]') }, { epochs: 1 })
  const { status, error } = await app.untilEnded(id)
  assert.equal(status, 'failed')
  assert.equal(error!.code, 'graders_failed')
  const says = /^Graders failed on \d+ of \d+ answers, more than the 20 % of error_share_max\. The last: .*KeyError/s
  assert.match(error!.message, says)
})
