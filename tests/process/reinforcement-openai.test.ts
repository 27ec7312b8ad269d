// Learning from a grader with OpenAI's own client: created, watched and used as that API has it.
import assert from 'node:assert/strict'
import { before, test } from 'node:test'
import OpenAI from 'openai'
import { until } from '../support/client.ts'
import { prompts } from '../support/reinforcement.ts'
import { appOfTests } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'

const app = appOfTests()
let openai: OpenAI
before(async () => {
  await app.started
  openai = new OpenAI({ baseURL: app.url, apiKey: app.key, maxRetries: 0 })
})

const grader = {
  type: 'python' as const,
  name: 'letters',
  source:
    'def grade(sample, item):\n    text = sample["output_text"]\n' +
    '    return sum(c in "kvz" for c in text) / max(1, len(text))\n',
}

/** What that API's events have of a step or an evaluation. */
interface Metrics {
  step: number
  total_steps: number
  train_mean_reward?: number
  full_valid_mean_reward?: number
  completion_tokens_mean: number
  scores: { graders: object[]; train_reward_mean?: number; valid_reward_mean?: number }
  errors: { graders: object[] }
  timing: { step: { sampling: number; training: number; full_iteration: number } }
}

test('a program for that API tries a grader, learns from it, watches the metrics and calls the model', async () => {
  const { graders } = openai.fineTuning.alpha
  const used = { ...grader, pass_threshold: 0.5 }
  assert.deepEqual((await graders.validate({ grader })).grader, used)
  assert.equal((await graders.run({ grader, model_sample: 'kiwi', item: {} })).reward, 0.25)
  assert.equal((await graders.run({ grader, model_sample: 'apple', item: {} })).reward, 0)

  const file = async (rows: string) =>
    (await openai.files.create({ file: new File([rows], 'prompts.jsonl'), purpose: 'fine-tune' })).id
  const hyperparameters = { n_epochs: 1, batch_size: 2, compute_multiplier: 0.25, eval_interval: 2, eval_samples: 1 }
  const job = await openai.fineTuning.jobs.create({
    model: tiny,
    training_file: await file(prompts(4)),
    validation_file: await file(prompts(2)),
    seed: 1,
    method: { type: 'reinforcement', reinforcement: { grader, hyperparameters } },
  })
  assert.equal(job.method!.type, 'reinforcement')
  const { reinforcement } = job.method!
  assert.deepEqual(reinforcement!.grader, used)
  assert.deepEqual(reinforcement!.hyperparameters, {
    ...hyperparameters,
    learning_rate_multiplier: 1,
    reasoning_effort: 'default',
  })

  const current = () => openai.fineTuning.jobs.retrieve(job.id)
  await until('the job to end', async () => !['queued', 'running'].includes((await current()).status))
  const done = await current()
  assert.equal(done.status, 'succeeded', JSON.stringify(done.error))
  assert.ok(done.trained_tokens! > 0)

  const events = (await openai.fineTuning.jobs.listEvents(job.id, { limit: 100 })).data.toReversed()
  const metrics = events.flatMap(({ type, data }) => (type === 'metrics' ? [data as Metrics] : []))
  const trained = metrics.filter(({ train_mean_reward }) => train_mean_reward !== undefined)
  assert.deepEqual(
    trained.map(({ step, total_steps }) => [step, total_steps]),
    [
      [1, 2],
      [2, 2],
    ],
  )
  for (const { train_mean_reward, completion_tokens_mean, scores, errors, timing } of trained) {
    assert.ok(train_mean_reward! >= 0 && train_mean_reward! <= 1)
    assert.ok(completion_tokens_mean >= 1)
    assert.equal(scores.train_reward_mean, train_mean_reward)
    assert.deepEqual(scores.graders, [{ name: 'letters', train_reward_mean: train_mean_reward }])
    assert.deepEqual(errors.graders, [{ name: 'letters', train_other_error_count: 0, train_other_error_mean: 0 }])
    assert.ok(timing.step.sampling > 0 && timing.step.training > 0)
    assert.ok(timing.step.full_iteration >= timing.step.sampling + timing.step.training)
  }
  const validated = metrics.filter(({ full_valid_mean_reward }) => full_valid_mean_reward !== undefined)
  assert.deepEqual(
    validated.map(({ step }) => step),
    [0, 2],
  )
  for (const { full_valid_mean_reward, scores } of validated) {
    assert.equal(scores.valid_reward_mean, full_valid_mean_reward)
    assert.deepEqual(scores.graders, [{ name: 'letters', valid_reward_mean: full_valid_mean_reward }])
  }

  const csv = await (await openai.files.content(done.result_files[0]!)).text()
  const [header, ...lines] = Buffer.from(csv, 'base64').toString().trim().split('\n')
  assert.ok(header!.endsWith(',train_mean_reward,full_valid_mean_reward'), header)
  assert.deepEqual(
    lines.map((line) => line.split(',').at(-2)),
    ['', ...trained.map(({ train_mean_reward }) => train_mean_reward!.toFixed(5))],
  )

  const answer = await openai.chat.completions.create({
    model: done.fine_tuned_model!,
    messages: [{ role: 'user', content: 'word 1?' }],
    max_completion_tokens: 4,
  })
  assert.equal(answer.choices.length, 1)
})
