// Learning from graders teaches what they reward: a rule of the answer, and nothing where the reward is of chance.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import type { Grader } from '../../contract/graders.ts'
import { full } from '../support/full.ts'
import { figuresOf, learn, letters, prompts, rewarded } from '../support/reinforcement.ts'
import { startApp, type TestApp } from '../support/service.ts'
import { tinyModelsDir } from '../support/tiny.ts'

let app: TestApp
before(async () => {
  // With embeddings so long that a token can be far likelier than others, unlike those of the other tests' base.
  app = await startApp({ TUNERY_MODELS_DIR: tinyModelsDir({ initializer_range: 0.3 }) })
})
after(() => app.stop())

const chance = 'import random\ndef grade(sample, item):\n    return int(random.random() < 0.15)'

/** The mean reward of each step, and how many answers of the model that came of it have one of the letters. */
async function learned(
  grader: Grader,
  seed: number,
  { epochs, ...options }: { epochs: number; policy_loss?: string; updates_per_step?: number } = { epochs: 12 },
): Promise<{ rewards: number[]; share: number }> {
  const rows = prompts(4)
  const id = await learn(app, rows, { grader, ...options }, { epochs, seed, learning_rate: 0.02 })
  const rewards = (await figuresOf(app, id)).map(({ reward }) => Number(reward))
  const job = await app.job(id)
  assert.equal(job.status, 'completed', JSON.stringify(job.error))
  assert.equal(rewards.length, epochs)
  const answers = await Promise.all(
    rows.split('\n').map(async (row) => {
      const { messages } = JSON.parse(row)
      const request = { model: job.model, messages, n: 8, max_tokens: 1, temperature: 1, top_p: 1, seed }
      const { body: answered } = await app.api('POST', '/chat/completions', request)
      return answered.choices.map(({ message }: { message: { content: string } }) => message.content)
    }),
  )
  const texts: string[] = answers.flat()
  return { rewards, share: texts.filter((text) => rewarded.test(text)).length / texts.length }
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

// Two updates of a step: the ratios of the second are not 1, so it is clipped as its loss says.
for (const policy_loss of ['gspo', 'grpo', 'dr_grpo', 'cispo', 'rloo'])
  test(`${policy_loss} with two updates a step learns the rule`, policy_loss === 'gspo' ? {} : full, async () => {
    const { rewards, share } = await learned(letters, 1, { epochs: 10, policy_loss, updates_per_step: 2 })
    assert.ok(rewards[0]! < 0.3, `it begins by chance: ${rewards}`)
    assert.ok((rewards.at(-1)! + rewards.at(-2)!) / 2 >= 0.6, `it learns: ${rewards}`)
    assert.ok(share >= 0.6, `the served model has learned: ${share}`)
  })
