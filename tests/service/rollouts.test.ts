// The answers of a job that learns from graders, over the API, the client library and the command line.
import assert from 'node:assert/strict'
import { before, test } from 'node:test'
import { Tunery } from '../../sdk/index.ts'
import { keptOf } from '../../server/features/jobs/reinforcement/kept.ts'
import { codeOf } from '../support/browser.ts'
import { startCli } from '../support/cli.ts'
import { jobRow } from '../support/job-row.ts'
import { appOfTests } from '../support/service.ts'

const app = appOfTests()
const id = 'job_learns'
const last = 25
let dataset_id: string

const answer = (text: string, score: number | null) => ({
  ...{ tokens: [1, 2, 3], logprobs: [-1, -1, -1], text, tool_calls: [], cut: false, score },
  ...{ thought_tokens: 0, message: { role: 'assistant', content: text }, watched: {} },
  graders: { sum: { score, passed: score === 1, ...(score === null && { error: 'no answer in time' }) } },
  error: score === null ? "'sum' failed: no answer in time" : null,
})

/** With an environment, and a grader that is watched. */
const played = {
  ...answer('held out', 1),
  watched: { style: 0.25 },
  episode: {
    ...{ context: [[1, 2]] as [number, number][], turns: 2, environment_ms: 3, given: {} },
    messages: [{ role: 'tool', tool_call_id: 'call_1', content: 'It rains.' }],
  },
}

/** A job of the owner with answers of 25 steps, and of held-out prompts after the last. */
before(async () => {
  await app.started
  const row = (number: number) => `{"messages":[{"role":"user","content":"prompt ${number}"}]}`
  dataset_id = (await app.upload([1, 2, 3].map(row).join('\n'))).body.id
  assert.equal((await app.api('GET', `/datasets/${dataset_id}/rows`)).status, 200)
  const job = jobRow({ id, account_id: app.owner.account_id, dataset_id, status: 'completed', created_at: 1 })
  await app.db.insertInto('tuning_jobs').values(job).execute()
  const answers = [answer('good', 1), answer('bad', 0), answer('late', null)]
  const kept = [
    ...Array.from({ length: last }, (_, index) => keptOf(index + 1, 'training', [{ row: 2, prompt: [], answers }])),
    keptOf(last, 'validation', [{ row: 3, prompt: [], answers: [played] }]),
  ]
  for (const { step, split, figures, groups } of kept)
    await app.db
      .insertInto('job_rollouts')
      .values({
        ...{ job_id: id, step, split },
        ...{ figures_json: JSON.stringify(figures), groups_json: JSON.stringify(groups) },
      })
      .execute()
})

test('steps are listed latest first, each once, and a step has its prompts, answers and scores', async () => {
  const tunery = new Tunery({ baseUrl: app.url, apiKey: app.key })
  const steps = []
  for await (const each of tunery.jobs.rollouts.list(id, { limit: 10 })) steps.push(each)
  assert.deepEqual(
    steps.map(({ step }) => step),
    Array.from({ length: last }, (_, index) => last - index),
  )
  const figures = { reward: 0.5, prompts: 1, answers: 3, failures: 1 }
  assert.deepEqual(steps.at(-1), { step: 1, training: figures, validation: null })
  const { training, validation } = await tunery.jobs.rollouts.get(id, String(last))
  const [group] = training!.groups
  assert.deepEqual(
    { ...group, answers: group!.answers.map(({ text, score }) => [text, score]) },
    {
      row: 2,
      line: 2,
      messages: [{ role: 'user', content: 'prompt 2' }],
      answers: [
        ['good', 1],
        ['bad', 0],
        ['late', null],
      ],
      answer_count: 3,
    },
  )
  assert.deepEqual(group!.answers[2]!.graders, { sum: { score: null, error: 'no answer in time' } })
  assert.deepEqual(validation!.groups[0]!.messages, [{ role: 'user', content: 'prompt 3' }])
})

test('the command line shows them, and what failed', async () => {
  const run = async (...words: string[]) => {
    const env = { ...process.env, TUNERY_URL: app.url, TUNERY_KEY: app.key } as Record<string, string>
    const { status, stdout, stderr } = await startCli(env, ['jobs', 'rollouts', id, ...words]).ended
    assert.equal(status, 0, stderr)
    return stdout
  }
  assert.match(await run('--limit', '2'), /25\s+0\.5\S*\s+1/)
  const shown = await run('--step', String(last))
  for (const text of [
    'prompt 2',
    'good',
    'late',
    "'sum' failed: no answer in time",
    'Held-out prompts after step 25',
    'It rains.',
  ])
    assert.ok(shown.includes(text), `${text} in ${shown}`)
  assert.match(shown, /sum 1\S*, style \(watched\) 0\.25\S*, 2 turns/)
})

test('they are of their account alone, and name what is not there', async () => {
  for (const path of ['rollouts', 'rollouts/1'])
    assert.deepEqual(codeOf(await app.other.api('GET', `/fine-tuning/jobs/${id}/${path}`)), [404, 'job_not_found'])
  assert.deepEqual(codeOf(await app.api('GET', `/fine-tuning/jobs/${id}/rollouts/99`)), [404, 'not_found'])
  assert.equal((await app.api('GET', `/fine-tuning/jobs/${id}/rollouts/none`)).status, 400)
})

test('the prompts go with their dataset, and the answers with their job', async () => {
  assert.equal((await app.api('DELETE', `/datasets/${dataset_id}`)).status, 200)
  const { body } = await app.api('GET', `/fine-tuning/jobs/${id}/rollouts/1`)
  const [group] = body.training.groups
  assert.deepEqual([group.messages, group.line, group.answers[0].text], [null, null, 'good'])
  assert.equal((await app.api('DELETE', `/fine-tuning/jobs/${id}`)).status, 200)
  assert.deepEqual(await app.db.selectFrom('job_rollouts').selectAll().execute(), [])
  assert.deepEqual(codeOf(await app.api('GET', `/fine-tuning/jobs/${id}/rollouts`)), [404, 'job_not_found'])
})
