// Learning from graders teaches what they reward: a rule of the answer, and nothing where the reward is of chance.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import type { Grader } from '../../contract/graders.ts'
import { startApp, type TestApp } from '../support/service.ts'
import { tiny, tinyModelsDir } from '../support/tiny.ts'

let app: TestApp
before(async () => {
  // With embeddings so long that a token can be far likelier than others, unlike those of the other tests' base.
  app = await startApp({ TUNERY_MODELS_DIR: tinyModelsDir({ initializer_range: 0.3 }) })
})
after(() => app.stop())

const prompts = Array.from({ length: 4 }, (_, index) => [{ role: 'user', content: `word ${index}?` }])
/** A seventh of the base's answers of one token have one of these. */
const letters: Grader = {
  type: 'regex',
  name: 'letters',
  input: '{{sample.output_text}}',
  pattern: '[kvz]',
  ignore_case: true,
  negate: false,
}
const chance = 'import random\ndef grade(sample, item):\n    return int(random.random() < 0.15)'

/** The mean reward of each step, and how many answers of the model that came of it have one of the letters. */
async function learned(grader: Grader, seed: number): Promise<{ rewards: number[]; share: number }> {
  const { body: dataset } = await app.upload(prompts.map((messages) => JSON.stringify({ messages })).join('\n'))
  const { status, body } = await app.api('POST', '/fine-tuning/jobs', {
    model_id: tiny,
    dataset_id: dataset.id,
    config: {
      method_options: { objective: 'reinforcement', grader, group_size: 16, max_tokens: 1, refill_rounds: 0 },
      training_config: { epochs: 12, batch_size: 4, learning_rate: 0.03, warmup_ratio: 0, seed },
    },
  })
  assert.equal(status, 201, JSON.stringify(body))
  const rewards: number[] = []
  for await (const { type, data } of app.events(body.id)) if (type === 'metrics') rewards.push(Number(data!.reward))
  const job = await app.job(body.id)
  assert.equal(job.status, 'completed', JSON.stringify(job.error))
  assert.equal(rewards.length, 12)
  const answers = await Promise.all(
    prompts.map(async (messages) => {
      const request = { model: job.model, messages, n: 8, max_tokens: 1, temperature: 1, top_p: 1, seed }
      const { body: answered } = await app.api('POST', '/chat/completions', request)
      return answered.choices.map(({ message }: { message: { content: string } }) => message.content)
    }),
  )
  const texts: string[] = answers.flat()
  return { rewards, share: texts.filter((text) => /[kvz]/i.test(text)).length / texts.length }
}

for (const seed of [1, 2, 3])
  test(`the reward of a rule rises from chance to at least 0.9 (seed ${seed})`, { timeout: 200_000 }, async () => {
    const { rewards, share } = await learned(letters, seed)
    assert.ok(rewards[0]! < 0.4, `it begins by chance: ${rewards}`)
    assert.ok(Math.min(...rewards.slice(-2)) >= 0.9, `it learns: ${rewards}`)
    assert.ok(share >= 0.9, `the served model has learned: ${share}`)
  })

test('the same run with a reward of chance gets no more of it', { timeout: 200_000 }, async () => {
  // Which token it comes to prefer is chance, too: one in seven such runs ends with one of the letters.
  const { rewards } = await learned({ type: 'python', name: 'chance', source: chance, pass_threshold: 0.5 }, 1)
  assert.ok(Math.max(...rewards) < 0.5, `the reward stays that of chance: ${rewards}`)
})
