// Preference tuning through the service: from rows of preferences to a model that answers, in both APIs.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import OpenAI from 'openai'
import type { ResolvedConfig } from '../../contract/fine-tuning.ts'
import { full } from '../support/full.ts'
import { liftedScores } from '../support/preferences.ts'
import { startApp, type TestApp } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'

let app: TestApp
let openai: OpenAI
before(async () => {
  app = await startApp()
  openai = new OpenAI({ baseURL: app.url, apiKey: app.key, maxRetries: 0 })
})
after(() => app.stop())

const colours = ['red', 'green', 'blue', 'white', 'black', 'pink']
const lines = (rows: object[]) => rows.map((row) => JSON.stringify(row)).join('\n')
const pairs = colours.map((colour) => ({
  prompt: `code of ${colour}?`,
  chosen: `${colour}-1`,
  rejected: `${colour}, I think, but I am not sure`,
}))
const rated = pairs.map(({ prompt, chosen, rejected }, index) => ({
  prompt,
  completion: index % 2 ? chosen : rejected,
  label: index % 2 === 1,
}))
const create = (dataset_id: string, method_options: object, more: object = {}) =>
  app.api('POST', '/fine-tuning/jobs', {
    model_id: tiny,
    dataset_id,
    config: {
      method_options,
      training_config: { epochs: 4, batch_size: 2, learning_rate: 0.005 },
      evaluation_config: { validation_split: 0.34 },
      ...more,
    },
  })
const answers = async (model: string) => {
  const request = { model, messages: [{ role: 'user', content: 'code of red?' }], max_tokens: 4 }
  return (await app.api('POST', '/chat/completions', request)).status === 200
}

test('pairs and rated answers train models, with their own figures; what a job learned is in its lineage', async () => {
  for (const [objective, rows] of [
    // The trainer's own tests train by dpo, and the other tests here.
    ...(process.env.TEST_FULL ? [['dpo', pairs] as const] : []),
    ['kto', rated] as const,
  ]) {
    const dataset = (await app.upload(lines(rows))).body
    const { status, body } = await create(dataset.id, { objective })
    assert.equal(status, 201, JSON.stringify(body))
    const scored = await app.untilEvent(body.id, ({ data }) => data?.phase === 'reference')
    assert.equal(scored.type, 'status', 'the answers are scored before the first step')
    const job = await app.untilEnded(body.id)
    assert.equal(job.status, 'completed', JSON.stringify(job.error))
    const config = job.resolved_config as ResolvedConfig
    assert.deepEqual(config.method_options.beta, { value: 0.1, source: 'default' })
    assert.ok(job.metrics.validation_reward_accuracy !== undefined && job.metrics.validation_exact === undefined)
    const [evaluation] = (await app.api('GET', `/fine-tuning/jobs/${job.id}/evaluations`)).body.items
    assert.equal(typeof evaluation.validation_reward_margin, 'number')
    const worst = (await app.api('GET', `/fine-tuning/jobs/${job.id}/rows`)).body.items[0]
    assert.equal(worst.messages.length, 2)
    assert.equal('rejected' in worst, objective === 'dpo')
    const model = (await app.api('GET', `/fine-tuning/models/${job.model}`)).body
    assert.equal(model.lineage.steps.at(-1).objective, objective)
    assert.ok(await answers(job.model!))
  }
})

test('a dataset tells what it teaches, its tokens and what is cut; a job of another kind is refused', async () => {
  const long = { prompt: 'word '.repeat(400), chosen: 'yes', rejected: 'no' }
  const wordy = { prompt: 'hi', chosen: 'word '.repeat(400), rejected: 'no' }
  const { id } = (await app.upload(lines([...pairs, long, wordy]))).body
  const validation = (await app.api('POST', `/datasets/${id}/validate?model_id=${tiny}&max_length=64`)).body
  assert.deepEqual((await app.api('GET', `/datasets/${id}`)).body.objectives, ['dpo'])
  assert.equal(validation.valid, true, JSON.stringify(validation.errors))
  assert.deepEqual([validation.tokens.cut_rows, validation.tokens.no_learned_rows], [2, 1])
  assert.match(JSON.stringify(validation.warnings), /line":8.*answers is longer than 64/)
  const preview = (await app.api('GET', `/datasets/${id}/preview?model_id=${tiny}&row=7&max_length=64`)).body
  assert.equal(preview.sequences.length, 2)
  for (const { tokens, cut_tokens } of preview.sequences) {
    assert.ok(cut_tokens > 0 && tokens.some(({ trained }: { trained: boolean }) => trained))
  }
  const refused = async (request: ReturnType<typeof create>, code: string, says: RegExp) => {
    const { status, body } = await request
    assert.deepEqual([status, body.error.code], [400, code], JSON.stringify(body))
    assert.match(body.error.message, says)
  }
  await refused(create(id, {}), 'dataset_invalid', /pairs of answers.*'sft' learns from conversations/)
  await refused(create(id, { objective: 'kto' }), 'dataset_invalid', /rated answers/)
  const same = rated.map((row) => ({ ...row, completion: 'red' }))
  for (const [rows, says] of [
    [same, /All 6 answers .* are the same.*'kto'/],
    [rated.slice(0, 1), /has one answer/],
  ] as const) {
    const dataset = (await app.upload(lines(rows))).body
    await refused(create(dataset.id, { objective: 'kto' }), 'dataset_invalid', says)
  }
  const two = (await app.upload(lines(rated.slice(0, 2)))).body
  await refused(create(two.id, { objective: 'kto' }), 'invalid_request', /2 rows, and the split leaves one/)
  await refused(create(id, { objective: 'dpo', desirable_weight: 2 }), 'invalid_request', /objective kto/)
  await refused(create(id, { objective: 'dpo', loss_type: 'robust' }), 'invalid_request', /label_smoothing/)
  await refused(create(id, { objective: 'dpo', beta: 0 }), 'invalid_request', /beta/)
})

test('a program for OpenAI’s API trains by dpo', full, async () => {
  const rows = pairs.map(({ prompt, chosen, rejected }) => ({
    input: { messages: [{ role: 'user', content: prompt }], tools: [], parallel_tool_calls: true },
    preferred_output: [{ role: 'assistant', content: chosen }],
    non_preferred_output: [{ role: 'assistant', content: rejected }],
  }))
  const file = await openai.files.create({ file: new File([lines(rows)], 'pairs.jsonl'), purpose: 'fine-tune' })
  assert.equal((await openai.files.waitForProcessing(file.id, { pollInterval: 50 })).status, 'processed')
  const made = await openai.fineTuning.jobs.create({
    model: tiny,
    training_file: file.id,
    method: { type: 'dpo', dpo: { hyperparameters: { beta: 0.2, n_epochs: 1, batch_size: 3 } } },
  })
  await app.untilEnded(made.id)
  const job = await openai.fineTuning.jobs.retrieve(made.id)
  assert.equal(job.status, 'succeeded', JSON.stringify(job.error))
  const hyperparameters = { n_epochs: 1, batch_size: 3, learning_rate_multiplier: 1, beta: 0.2 }
  assert.deepEqual(job.method, { type: 'dpo', dpo: { hyperparameters } })
  assert.ok(await answers(job.fine_tuned_model!))
})

test('an estimate of a preference job counts both answers, and the scoring before the first step', full, async () => {
  const { id } = (await app.upload(lines(pairs))).body
  const body = { model_id: tiny, dataset_id: id, config: { method_options: { objective: 'dpo' } } }
  const estimate = await app.api('POST', '/fine-tuning/jobs/estimate', body)
  assert.equal(estimate.status, 200, JSON.stringify(estimate.body))
  assert.equal(estimate.body.rows, pairs.length)
  assert.ok(estimate.body.seconds > 0 && estimate.body.tokens > 0)
})

test('preferences lift a score that the written answers alone do not', full, async () => {
  // One of four written answers is the wanted one.
  const written = colours.flatMap((colour) =>
    ['ask billing', 'refund it', 'refund it', 'refund it'].map((answer) => ({
      messages: [
        { role: 'user', content: `code of ${colour}?` },
        { role: 'assistant', content: answer },
      ],
    })),
  )
  const chosen = colours.map((colour) => ({
    prompt: `code of ${colour}?`,
    chosen: 'ask billing',
    rejected: 'refund it',
  }))
  const config = (epochs: number, batch_size: number, learning_rate: number) => ({
    method: 'full',
    training_config: { epochs, batch_size, learning_rate },
  })
  const scores = await liftedScores(app, tiny, written, chosen, config(6, 4, 0.01), config(8, 2, 0.003))
  const [before, after] = await scores((answer, wanted) => answer.trim() === wanted)
  assert.ok(before! <= 0.34 && after! >= 0.8, `${before}, then ${after}`)
})
