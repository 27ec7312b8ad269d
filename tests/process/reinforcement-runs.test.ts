// Learning from graders with held-out prompts, which choose the state that is kept.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import type { JobEvent } from '../../contract/fine-tuning.ts'
import { startApp, type TestApp } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'

let app: TestApp
let whole: JobEvent[]
let whole_id: string
before(async () => {
  app = await startApp()
  whole_id = await reinforce()
  whole = await completed(whole_id)
})
after(() => app.stop())

/** A quarter of the tiny base's answers have one of these. */
/** No part of the reward: one that is cheap, and one that asks code of the user and fails. */
const watched = [
  { type: 'regex', name: 'vowels', input: '{{sample.output_text}}', pattern: '[aeiou]', ignore_case: true },
  { type: 'python', name: 'broken', source: 'def grade(sample, item):\n    raise ValueError("broken")' },
]
const letters = { type: 'regex', name: 'letters', input: '{{sample.output_text}}', pattern: '[kvz]', ignore_case: true }

/** Four prompts in steps of two, two held-out ones; an evaluation every three steps. */
async function reinforce(): Promise<string> {
  const rows = Array.from({ length: 6 }, (_, index) =>
    JSON.stringify({ messages: [{ role: 'user', content: `word ${index}?` }] }),
  )
  const { body: dataset } = await app.upload(rows.join('\n'))
  const limits = { group_size: 16, max_tokens: 2, refill_rounds: 0, evaluation_samples: 16 }
  const { status, body } = await app.api('POST', '/fine-tuning/jobs', {
    model_id: tiny,
    dataset_id: dataset.id,
    config: {
      method_options: { objective: 'reinforcement', grader: letters, watched_graders: watched, ...limits },
      training_config: { epochs: 4, batch_size: 2, learning_rate: 0.01, seed: 1 },
      evaluation_config: { validation_split: 0.34, every_steps: 3 },
    },
  })
  assert.equal(status, 201, JSON.stringify(body))
  return body.id
}

async function completed(id: string): Promise<JobEvent[]> {
  const events: JobEvent[] = []
  for await (const event of app.events(id)) events.push(event)
  const job = await app.job(id)
  assert.equal(job.status, 'completed', JSON.stringify(job.error))
  return events
}

test('watched graders are reported beside the reward, and how far the model is from its base', async () => {
  const metrics = whole.flatMap(({ type, data }) => (type === 'metrics' ? [data!] : []))
  const steps = metrics.filter(({ reward }) => reward !== undefined)
  const evaluations = metrics.filter(({ validation_reward }) => validation_reward !== undefined)
  assert.ok(steps.length > 0 && evaluations.length > 0)
  for (const { graders, reward, watched_graders, grader_failures } of steps) {
    assert.deepEqual(graders, { letters: reward })
    assert.deepEqual(Object.keys(watched_graders as object), ['vowels'])
    assert.equal(grader_failures, 0)
  }
  for (const { validation_graders, validation_reward, validation_watched_graders } of evaluations) {
    assert.deepEqual(validation_graders, { letters: validation_reward })
    assert.deepEqual(Object.keys(validation_watched_graders as object), ['vowels'])
  }
  const kl = evaluations.map(({ step, validation_kl }) => [Number(step), Number(validation_kl)] as const)
  const [first, ...later] = kl.toSorted(([a], [b]) => a - b)
  assert.deepEqual(first, [0, 0], 'a new adapter changes nothing')
  for (const [, value] of later) assert.ok(value > 0, `${kl}`)
  const { items } = (await app.api('GET', `/fine-tuning/jobs/${whole_id}/evaluations`)).body
  assert.deepEqual(
    items.map(({ validation_kl }: { validation_kl: number }) => validation_kl).toReversed(),
    kl.map(([, value]) => value),
  )
  const kept = (await app.api('GET', `/fine-tuning/jobs/${whole_id}/rollouts/0`)).body.validation
  for (const { text, watched_graders } of kept.groups[0].answers)
    assert.deepEqual(watched_graders, { vowels: Number(/[aeiou]/i.test(text)), broken: null })
})

test('held-out prompts choose the best state, and their answers are shown with scores', async () => {
  const job = await app.job(whole_id)
  const { items } = (await app.api('GET', `/fine-tuning/jobs/${whole_id}/evaluations`)).body
  const rewards = new Map<number, number>(
    items.map(({ step, validation_reward }: Record<string, number>) => [step!, validation_reward!]),
  )
  assert.deepEqual([...rewards.keys()], [8, 6, 3, 0])
  const best = Math.max(...rewards.values())
  assert.ok(best > 0 && best < 1, `${[...rewards]}`)
  assert.equal(job.metrics.validation_reward, best)
  const samples = whole.filter(({ type }) => type === 'sample')
  assert.equal(samples.length, rewards.size * 2)
  for (const { data } of samples) {
    assert.deepEqual(data!.graders, { letters: Number(/[kvz]/i.test(String(data!.answer))) })
    assert.ok(Array.isArray(data!.prompt))
  }
  const held = (await app.api('GET', `/fine-tuning/jobs/${whole_id}/held-out`)).body.items
  assert.equal(held.length, 2)
  const asked = new Set(held.map(({ messages }: { messages: { content: string }[] }) => messages[0]!.content))
  for (const { data } of samples) assert.ok(asked.has((data!.prompt as { content: string }[])[0]!.content))
})

test('answers of each step and evaluation can be read, with the score that the grader gave', async () => {
  const path = `/fine-tuning/jobs/${whole_id}/rollouts`
  const { items } = (await app.api('GET', `${path}?limit=100`)).body
  assert.deepEqual(
    items.map(({ step, training, validation }: Record<string, unknown>) => [
      step,
      training !== null,
      validation !== null,
    ]),
    [8, 7, 6, 5, 4, 3, 2, 1, 0].map((step) => [step, step > 0, [8, 6, 3, 0].includes(step)]),
  )
  const rewards = new Map(whole.map(({ type, data }) => [`${type} ${data?.step} ${data?.reward !== undefined}`, data]))
  for (const { step } of items) {
    const { training, validation } = (await app.api('GET', `${path}/${step}`)).body
    if (training) assert.equal(training.reward, rewards.get(`metrics ${step} true`)!.reward)
    for (const { groups, prompts } of [training, validation].filter(Boolean)) {
      assert.equal(groups.length, prompts)
      for (const { messages, answers, answer_count } of groups) {
        assert.match(messages[0].content, /^word \d\?$/)
        assert.deepEqual([answers.length, answer_count], [16, 16])
        for (const { text, score, graders, tokens } of answers) {
          assert.equal(score, Number(/[kvz]/i.test(text)))
          assert.equal(graders.letters.score, score)
          assert.ok(tokens > 0 && tokens <= 2)
        }
      }
    }
  }
})
