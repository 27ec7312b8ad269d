// Evaluations, sample answers, kept checkpoints and row losses of a job, during and after the run; estimates; pause and
// resume; slowdowns.
import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { readdirSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { before, test } from 'node:test'
import type { Job, JobEvent } from '../../contract/fine-tuning.ts'
import { recordSlowdown } from '../../server/features/jobs/recorder.ts'
import { colourRows } from '../support/client.ts'
import { full } from '../support/full.ts'
import { appOfTests } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'

const app = appOfTests()
let dataset: string
before(async () => {
  await app.started
  dataset = (await app.upload(colourRows(16))).body.id
})

/** The id of the first test's job. */
let completed: string
const create = (config: object, more: object = {}) =>
  app.api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id: dataset, config, ...more })
const chat = async (model: string) =>
  (
    await app.api('POST', '/chat/completions', {
      model,
      messages: [{ role: 'user', content: 'code of blue?' }],
      temperature: 0,
      max_tokens: 8,
    })
  ).body

/** The held-out rows are a quarter, with their own messages, and none of them was trained on. */
async function assertHeldOut(id: string): Promise<void> {
  const page = async (query: string) => (await app.api('GET', `/fine-tuning/jobs/${id}/held-out?${query}`)).body
  const all = (await app.api('GET', `/datasets/${dataset}/rows?limit=100`)).body.items
  const { items, has_more } = await page('limit=100')
  assert.deepEqual([items.length, has_more], [Math.round(all.length / 4), false])
  for (const item of items) assert.deepEqual(item, all[item.row - 1])
  const trained = (await app.api('GET', `/fine-tuning/jobs/${id}/rows?limit=100`)).body.items
  const numbers = (rows: { row: number }[]) => rows.map(({ row }) => row)
  assert.deepEqual(
    [...numbers(trained), ...numbers(items)].sort((a, b) => a - b),
    numbers(all),
  )
  const first = await page('limit=1')
  assert.deepEqual([first.items, first.has_more], [items.slice(0, 1), true])
  assert.deepEqual((await page(`limit=100&after=${first.items[0].row}`)).items, items.slice(1))
  assert.equal((await app.other.api('GET', `/fine-tuning/jobs/${id}/held-out`)).body.error.code, 'job_not_found')
}

test('held-out rows are scored, prompts answered next to the base, checkpoints kept, worst rows listed', async () => {
  const created = await create({
    training_config: { epochs: 4, batch_size: 4, learning_rate: 0.02 },
    evaluation_config: {
      validation_split: 0.25,
      sample_prompts: ['code of blue?', [{ role: 'user', content: 'code of red?' }]],
      keep_checkpoints: 2,
    },
  })
  assert.equal(created.status, 201, JSON.stringify(created.body))
  const { id } = created.body
  const events: JobEvent[] = []
  for await (const event of app.events(id)) events.push(event)
  const scores = events.filter((event) => event.data?.validation_loss !== undefined && event.type === 'metrics')
  assert.equal(scores.length, 4, 'once an epoch')
  const samples = events.filter((event) => event.type === 'sample')
  assert.equal(samples.length, 8)
  assert.deepEqual(samples[0]!.data!.prompt, [{ role: 'user', content: 'code of blue?' }])
  assert.equal(typeof samples[0]!.data!.base, 'string')
  assert.ok(!JSON.stringify(events).includes(app.dataDir), 'no path of the machine leaks')

  const job = await app.job(id)
  assert.equal(job.status, 'completed', JSON.stringify(job.error))
  completed = id
  assert.ok(!events.some(({ type }) => (type as string) === 'held_out'), 'they are no event of the stream')
  await assertHeldOut(id)
  const best = Math.min(...scores.map((event) => event.data!.validation_loss as number))
  assert.equal(job.metrics.validation_loss, best, 'the result is the best checkpoint')
  const evaluations = (await app.api('GET', `/fine-tuning/jobs/${id}/evaluations`)).body
  assert.deepEqual(
    evaluations.items.map(({ step, validation_loss }: Record<string, number>) => [step, validation_loss]),
    scores.map(({ data }) => [data!.step, data!.validation_loss]).toReversed(),
  )
  const resultEvaluation = evaluations.items.find(({ step }: { step: number }) => step === job.metrics.step)
  assert.deepEqual(
    [job.metrics.validation_loss, job.metrics.train_loss],
    [resultEvaluation.validation_loss, resultEvaluation.train_loss],
    'all losses belong to one step',
  )
  const losses = new Map(events.flatMap(({ data }) => (data?.losses ?? []) as [number, number][]))
  assert.equal(job.metrics.loss, losses.get(job.metrics.step!), 'of the step whose weights are the result')
  assert.deepEqual([job.metrics.steps_trained, job.metrics.steps_total], [12, 12])
  const before = (await app.api('GET', `/fine-tuning/jobs/${id}/evaluations?limit=1&after=${scores[2]!.data!.step}`))
    .body
  assert.deepEqual([before.items[0].step, before.has_more], [scores[1]!.data!.step, true])
  const { items } = (await app.api('GET', `/fine-tuning/jobs/${id}/checkpoints`)).body
  assert.ok(items.length >= 2)
  const result = items.find((item: { result: boolean }) => item.result)
  assert.equal(result.model, job.model)
  assert.equal(result.validation_loss, best)
  assert.equal(result.step, job.metrics.step)
  const other = items.find((item: { result: boolean; model: string | null }) => item.model && !item.result)
  assert.equal(
    (await app.api('POST', '/deployments', { model: other.model, name: 'earlier' })).body.status,
    'ready',
    'a kept checkpoint can be deployed',
  )
  assert.ok((await chat('earlier')).choices)

  const rows = (await app.api('GET', `/fine-tuning/jobs/${id}/rows?limit=3`)).body
  assert.equal(rows.items.length, 3)
  assert.equal(rows.has_more, true)
  assert.ok(rows.items[0].loss >= rows.items[1].loss)
  const lines = colourRows(16).trim().split('\n')
  for (const { row, messages } of rows.items) assert.deepEqual(messages, JSON.parse(lines[row - 1]!).messages)
  const next = (await app.api('GET', `/fine-tuning/jobs/${id}/rows?limit=100&after=${rows.items[2].row}`)).body
  assert.equal(next.items.length, 12 - 3, 'the held-out rows were not trained on')
  assert.equal(next.has_more, false)
})

test('a validation dataset is scored, and cannot be deleted until the job has ended', full, async () => {
  const datasetId = (await app.upload(colourRows(3))).body.id
  const config = {
    training_config: { epochs: 3 },
    evaluation_config: { validation_dataset_id: datasetId, every_steps: 2, early_stopping_patience: 5 },
  }
  const { id } = (await create(config)).body
  assert.equal((await app.api('DELETE', `/datasets/${datasetId}`)).body.error.code, 'in_use')
  const heldOut = (await app.api('GET', `/fine-tuning/jobs/${id}/held-out`)).body
  assert.deepEqual(heldOut, (await app.api('GET', `/datasets/${datasetId}/rows`)).body)
  const job = await app.untilEnded(id)
  assert.equal(job.status, 'completed', JSON.stringify(job.error))
  assert.ok(job.metrics.validation_loss! > 0)
  assert.equal((await app.api('DELETE', `/datasets/${datasetId}`)).status, 200)
})

test('evaluation settings that contradict each other or name a missing dataset are refused', async () => {
  const refused = async (evaluation_config: object, pattern: RegExp, status = 400) => {
    const answer = await create({ evaluation_config })
    assert.equal(answer.status, status)
    assert.match(answer.body.error.message, pattern)
  }
  await refused({ validation_split: 0.2, validation_dataset_id: dataset }, /exclude each other/)
  await refused({ early_stopping_patience: 2 }, /held-out rows/)
  await refused({ validation_split: 0.6 }, /validation_split/)
  await refused({ validation_dataset_id: 'ds_none' }, /no dataset/, 404)
  await refused({ sample_prompts: [''] }, /sample_prompts/)
  const { id: single } = (await app.upload(colourRows(1))).body
  const split = { model_id: tiny, dataset_id: single, config: { evaluation_config: { validation_split: 0.1 } } }
  for (const path of ['/fine-tuning/jobs', '/fine-tuning/jobs/estimate']) {
    const { status, body } = await app.api('POST', path, split)
    assert.deepEqual([status, body.error?.code], [400, 'invalid_request'], JSON.stringify(body))
    assert.match(body.error.message, /has one row, and a split needs at least two/)
  }
  const paused = (await create({ evaluation_config: { validation_split: 0.5 } })).body.id
  const early = await app.api('GET', `/fine-tuning/jobs/${paused}/held-out`)
  assert.ok(early.status === 404 || early.body.items.length > 0, JSON.stringify(early.body))
  await app.api('POST', `/fine-tuning/jobs/${paused}/cancel`)
  const { id } = (await create({ training_config: { epochs: 1 } })).body
  assert.deepEqual((await app.api('GET', `/fine-tuning/jobs/${id}/held-out`)).body, { items: [], has_more: false })
  assert.equal((await app.api('GET', `/fine-tuning/jobs/${id}/rows`)).body.error.code, 'job_not_completed')
  assert.equal((await app.other.api('GET', `/fine-tuning/jobs/${id}/rows`)).body.error.code, 'job_not_found')
  assert.equal((await app.other.api('POST', `/fine-tuning/jobs/${id}/pause`)).body.error.code, 'job_not_found')
  await app.api('POST', `/fine-tuning/jobs/${id}/cancel`)
  for (const ended of [id, completed]) {
    assert.equal((await app.api('POST', `/fine-tuning/jobs/${ended}/pause`)).body.error.code, 'job_not_pausable')
    assert.equal((await app.api('POST', `/fine-tuning/jobs/${ended}/resume`)).body.error.code, 'job_not_resumable')
  }
})

test('an estimate runs a few steps; the finished job shows predicted and actual use', full, async () => {
  const config = { training_config: { epochs: 3, batch_size: 4 } }
  const estimate = await app.api('POST', '/fine-tuning/jobs/estimate', { model_id: tiny, dataset_id: dataset, config })
  assert.equal(estimate.status, 200, JSON.stringify(estimate.body))
  const { body } = estimate
  assert.equal(body.fits, true)
  assert.equal(body.steps, 12)
  assert.deepEqual(body.price, { amount: 0, currency: 'USD' })
  assert.equal(body.resolved_config.training_config.epochs.value, 3)
  const again = (await app.api('POST', '/fine-tuning/jobs/estimate', { model_id: tiny, dataset_id: dataset, config }))
    .body
  assert.equal(again.seconds, body.seconds, 'cached')
  const job = await app.untilEnded((await create(config)).body.id)
  assert.equal(job.trained_tokens, body.tokens, 'exactly the estimated tokens')
  assert.ok(
    job.metrics.peak_memory_mb! < 2 * body.peak_memory_mb && body.peak_memory_mb < 2 * job.metrics.peak_memory_mb!,
  )
  assert.ok(job.metrics.predicted_memory_mb! > 0)
  const refused = await app.api('POST', '/fine-tuning/jobs/estimate', { model_id: 'no/such', dataset_id: dataset })
  assert.equal(refused.body.error.code, 'model_not_found')
  assert.ok(
    !readdirSync(path.join(app.dataDir, 'runs')).some((name) => name.startsWith('est_')),
    'a trial leaves no files',
  )
})

test('a paused job lets others pass and ends with the same weights as one that was never paused', full, async () => {
  const config = {
    training_config: { epochs: 50, batch_size: 2, learning_rate: 0.01 },
    evaluation_config: { validation_split: 0.25 },
  }
  const sha256 = (job: Job) =>
    createHash('sha256')
      .update(readFileSync(path.join(app.dataDir, 'models', job.model!, 'adapter.gguf')))
      .digest('hex')
  const { id } = (await create(config)).body
  await app.untilEvent(id, (event) => event.data?.validation_loss !== undefined)
  const pauseResponse = await app.api('POST', `/fine-tuning/jobs/${id}/pause`)
  assert.deepEqual([pauseResponse.body.status, pauseResponse.body.paused], ['running', true])
  await app.untilEvent(id, (event) => event.data?.status === 'paused')
  const listIds = async (status: string) =>
    (await app.api('GET', `/fine-tuning/jobs?status=${status}`)).body.items.map((job: Job) => job.id)
  assert.deepEqual([await listIds('paused'), await listIds('queued')], [[id], []])
  const history = async (list: string) => (await app.api('GET', `/fine-tuning/jobs/${id}/${list}`)).body.items
  const [evaluation] = await history('evaluations')
  assert.ok(evaluation.validation_loss > 0 && evaluation.train_loss > 0, 'readable while the job is paused')
  const [checkpoint] = await history('checkpoints')
  assert.ok(checkpoint.step >= evaluation.step)
  assert.deepEqual([checkpoint.model, checkpoint.result], [null, false])
  for (const what of ['evaluations', 'checkpoints'])
    assert.equal((await app.other.api('GET', `/fine-tuning/jobs/${id}/${what}`)).body.error.code, 'job_not_found')
  const unbrokenId = (await create(config)).body.id
  const unbroken = await app.untilEnded(unbrokenId)
  assert.equal(unbroken.status, 'completed', 'a paused job does not block others')
  const waiting = await app.job(id)
  assert.deepEqual([waiting.status, waiting.paused], ['paused', true])
  assert.equal(waiting.queue_position, null)
  const resumeResponse = (await app.api('POST', `/fine-tuning/jobs/${id}/resume`)).body
  assert.equal(resumeResponse.paused, false)
  assert.notEqual(resumeResponse.status, 'paused')
  const resumed = await app.untilEnded(id)
  assert.equal(resumed.status, 'completed')
  let from: unknown
  for await (const event of app.events(id)) from ??= event.data?.resumed_from_step
  assert.ok((from as number) > 0, 'it resumed from its checkpoint')
  assert.equal(sha256(resumed), sha256(unbroken))

  const queued = (await create(config)).body.id
  const second = (await create(config)).body.id
  assert.equal((await app.api('POST', `/fine-tuning/jobs/${second}/pause`)).body.paused, true)
  assert.equal(
    (await app.api('POST', `/fine-tuning/jobs/${second}/pause`)).body.paused,
    true,
    'pausing again changes nothing',
  )
  assert.equal((await app.api('POST', `/fine-tuning/jobs/${second}/cancel`)).body.status, 'cancelled')
  assert.equal((await app.api('POST', `/fine-tuning/jobs/${queued}/cancel`)).body.status, 'cancelled')
})

test('a job slowed by serving reports it with a new completion estimate, and reports its end', full, async () => {
  const { id } = (await create({ training_config: { epochs: 50, batch_size: 1 } })).body
  await app.untilEvent(id, ({ type, data }) => type === 'progress' && typeof data?.seconds_left === 'number')
  const now = Date.now()
  const before = await app.job(id)
  await app.db.transaction().execute((trx) => recordSlowdown(trx, id, { by: 'serving', cpu_share: 0.2 }, now))
  const slowed = await app.untilEvent(id, ({ data }) => data?.code === 'slowed')
  assert.equal(slowed.type, 'warning')
  assert.match(
    slowed.message,
    /^Answers of this service take the processor: the training gets 20 % of what it could use/,
  )
  assert.equal(before.slowed_by, null)
  assert.equal((await app.job(id)).slowed_by, 'serving')
  await app.db.transaction().execute((trx) => recordSlowdown(trx, id, null, now))
  assert.equal((await app.job(id)).slowed_by, null)
  assert.equal((await app.untilEvent(id, ({ data }) => data?.slowed_by === null)).type, 'log')

  await app.db.transaction().execute(async (trx) => {
    await trx
      .updateTable('tuning_jobs')
      .set({ estimated_completion: now + 10_000 })
      .where('id', '=', id)
      .execute()
    await recordSlowdown(trx, id, { by: 'other_work', cpu_share: 0.25 }, now)
    const { estimated_completion } = await trx
      .selectFrom('tuning_jobs')
      .select('estimated_completion')
      .where('id', '=', id)
      .executeTakeFirstOrThrow()
    assert.equal(estimated_completion, now + 40_000)
  })
  assert.equal(
    (await app.api('POST', `/fine-tuning/jobs/${id}/cancel`)).body.slowed_by,
    null,
    'a job that does not run is not slowed',
  )
})
