// OpenAI's fine-tuning API, with OpenAI's own client: from a file of rows to answers of the model that they made.
import assert from 'node:assert/strict'
import { before, test } from 'node:test'
import OpenAI from 'openai'
import { colourRows, until } from '../support/client.ts'
import { appOfTests } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'

const app = appOfTests({ TUNERY_MODEL_NAMES: `gpt-4o-mini-2024-07-18=${tiny}` })
let openai: OpenAI
let other: OpenAI
let training_file: string
before(async () => {
  await app.started
  openai = new OpenAI({ baseURL: app.url, apiKey: app.key, adminAPIKey: app.key, maxRetries: 0 })
  other = new OpenAI({ baseURL: app.url, apiKey: app.otherKey, adminAPIKey: app.otherKey, maxRetries: 0 })
  const file = await openai.files.create({ file: new File([colourRows(16)], 'rows.jsonl'), purpose: 'fine-tune' })
  training_file = file.id
})

type ErrorOfOpenai = InstanceType<typeof OpenAI.APIError>
const refused = (promise: Promise<unknown>, status: number, code: string, param: string | null, says = /./) =>
  assert.rejects(promise, (error: ErrorOfOpenai) => {
    assert.deepEqual([error.status, error.code, error.param], [status, code, param], error.message)
    assert.match(error.message, says)
    return true
  })
const create = (more: object) => openai.fineTuning.jobs.create({ model: tiny, training_file, ...more })
const answer = async (client: OpenAI, model: string) => {
  const request = {
    model,
    messages: [{ role: 'user' as const, content: 'code of blue?' }],
    temperature: 0,
    max_tokens: 8,
  }
  return (await client.chat.completions.create(request)).choices[0]!.message.content
}

test('a program for that API trains, watches, calls and deletes a model', async () => {
  const validation = await openai.files.create({
    file: new File([colourRows(4)], 'held-out.jsonl'),
    purpose: 'fine-tune',
  })
  const job = await openai.fineTuning.jobs.create({
    model: 'gpt-4o-mini-2024-07-18',
    training_file,
    validation_file: validation.id,
    suffix: 'colour codes!',
    seed: 7,
    metadata: { team: 'paint' },
    method: {
      type: 'supervised',
      supervised: { hyperparameters: { n_epochs: 6, batch_size: 4, learning_rate_multiplier: 20 } },
    },
  })
  assert.equal(job.object, 'fine_tuning.job')
  assert.equal(job.model, tiny)
  assert.equal(job.seed, 7)
  assert.equal(job.fine_tuned_model, null)
  assert.equal(job.trained_tokens, null)
  assert.deepEqual(job.metadata, { team: 'paint' })
  assert.deepEqual(job.hyperparameters, { n_epochs: 6, batch_size: 4, learning_rate_multiplier: 20 })
  assert.equal((await app.job(job.id)).config.training_config?.learning_rate, 0.02)

  await until(
    'the job to end',
    async () => !['queued', 'running'].includes((await openai.fineTuning.jobs.retrieve(job.id)).status),
  )
  const done = await openai.fineTuning.jobs.retrieve(job.id)
  assert.equal(done.status, 'succeeded', JSON.stringify(done.error))
  assert.match(done.fine_tuned_model!, new RegExp(`^ft:${tiny}:${app.owner.account_id}:colour-codes-:mdl_\\w+$`))
  assert.equal(done.trained_tokens, (await app.job(job.id)).trained_tokens)
  assert.ok(done.finished_at! >= done.created_at)
  assert.equal(done.error, null)
  assert.ok(await answer(openai, done.fine_tuned_model!))
  await refused(answer(other, done.fine_tuned_model!), 404, 'model_not_found', 'model')

  const [csv] = await Promise.all(
    done.result_files.map(async (id) => {
      assert.equal((await openai.files.retrieve(id)).purpose, 'fine-tune-results')
      return Buffer.from(await (await openai.files.content(id)).text(), 'base64').toString()
    }),
  )
  const [header, ...steps] = csv!.trim().split('\n')
  assert.equal(header, 'step,train_loss,train_accuracy,valid_loss,valid_mean_token_accuracy')
  assert.deepEqual(
    steps.map((line) => Number(line.split(',')[0])),
    Array.from({ length: 24 }, (_, index) => index + 1),
  )
  assert.ok(
    steps.every((line) => /^\d+,\d+\.\d{5},,/.test(line)),
    'every step has its loss',
  )
  assert.match(steps.at(-1)!, /^24,\d+\.\d{5},,\d+\.\d{5},[01]\.\d{5}$/)

  const events = (await openai.fineTuning.jobs.listEvents(job.id, { limit: 100 })).data
  assert.equal(events[0]!.message, `The job completed. Its model is ${done.fine_tuned_model!.split(':').at(-1)}.`)
  const ids: string[] = []
  for await (const event of openai.fineTuning.jobs.listEvents(job.id, { limit: 3 })) ids.push(event.id)
  assert.deepEqual(
    ids,
    events.map(({ id }) => id),
  )
  const metrics = events.filter(({ type }) => type === 'metrics').map(({ data }) => data as Record<string, number>)
  assert.ok(metrics.some(({ valid_loss }) => valid_loss !== undefined))

  const checkpoints = (await openai.fineTuning.jobs.checkpoints.list(job.id)).data
  assert.deepEqual([...new Set(checkpoints.map(({ step_number }) => step_number))].slice(0, 2), [24, 20])
  const { fine_tuned_model_checkpoint: name, metrics: atStep } = checkpoints.at(-1)!
  assert.match(name, /:ckpt-step-\d+$/)
  assert.ok(atStep.train_loss! > 0 && atStep.valid_loss! > 0)
  assert.ok(await answer(openai, name))
  assert.deepEqual((await openai.fineTuning.checkpoints.permissions.list(name)).data, [])
  await refused(
    openai.fineTuning.checkpoints.permissions.create(name, { project_ids: ['x'] }) as Promise<unknown>,
    403,
    'insufficient_permissions',
    'project_ids',
    /export/i,
  )

  const models = (await openai.models.list()).data
  assert.equal(models.find(({ id }) => id === done.fine_tuned_model)?.owned_by, app.owner.account_id)
  assert.ok(models.some(({ id }) => id === 'gpt-4o-mini-2024-07-18'))
  assert.ok(await answer(openai, 'gpt-4o-mini-2024-07-18'))
  await refused(other.models.delete(name), 404, 'model_not_found', 'model')
  assert.deepEqual(await openai.models.delete(name), { id: name, object: 'model', deleted: true })
  await refused(answer(openai, name), 404, 'model_not_found', 'model')
  await refused(openai.models.delete(tiny), 400, 'invalid_request', 'model', /base model/)
})

test('jobs are listed, filtered by metadata, paused, resumed and cancelled', async () => {
  const [first, second] = [await create({ metadata: { team: 'a"b', run: '1' } }), await create({})]
  const search = async (query: object) => (await openai.fineTuning.jobs.list(query)).data.map(({ id }) => id)
  assert.deepEqual((await search({})).slice(0, 2), [second.id, first.id])
  assert.deepEqual(await search({ limit: 1, after: second.id }), [first.id])
  assert.deepEqual(await search({ metadata: { team: 'a"b' } }), [first.id])
  assert.deepEqual(await search({ metadata: { team: 'a"b', run: '2' } }), [])
  assert.ok((await search({ metadata: null })).includes(second.id))
  assert.ok(!(await search({ metadata: null })).includes(first.id))

  assert.equal((await openai.fineTuning.jobs.pause(second.id)).status, 'paused')
  assert.notEqual((await openai.fineTuning.jobs.resume(second.id)).status, 'paused')
  assert.equal((await openai.fineTuning.jobs.cancel(second.id)).status, 'cancelled')
  await refused(openai.fineTuning.jobs.resume(second.id), 400, 'job_not_resumable', 'job_id')
  await openai.fineTuning.jobs.cancel(first.id)
  assert.equal((await app.job(first.id)).status, 'cancelled')
  await refused(other.fineTuning.jobs.retrieve(first.id), 404, 'job_not_found', 'job_id')
  // The Python client's way to send no body.
  const again = await app.api('POST', `/fine_tuning/jobs/${second.id}/cancel`, '')
  assert.equal(again.body.status, 'cancelled')
})

test('bad jobs are refused in that API’s shape, and the message says what to do', async () => {
  const hyperparameters = (values: object) => ({
    method: { type: 'supervised', supervised: { hyperparameters: values } },
  })
  const at = 'method.supervised.hyperparameters'
  await refused(create({ model: 'gpt-4.1-nano' }), 400, 'model_not_available', 'model', new RegExp(tiny))
  await refused(create({ training_file: 'file-none' }), 404, 'file_not_found', 'training_file')
  await refused(create({ validation_file: 'file-none' }), 404, 'file_not_found', 'validation_file')
  const batch = await openai.files.create({ file: new File(['{}'], 'x'), purpose: 'batch' })
  await refused(create({ training_file: batch.id }), 400, 'invalid_request', 'training_file', /purpose 'fine-tune'/)
  const bad = await openai.files.create({ file: new File(['{"messages":[]}\n'], 'x.jsonl'), purpose: 'fine-tune' })
  await refused(create({ training_file: bad.id }), 400, 'dataset_invalid', 'training_file')
  const reinforcement = { method: { type: 'reinforcement' } }
  await refused(create(reinforcement), 400, 'invalid_request', 'method.reinforcement', /grader/)
  await refused(create({ method: { type: 'dpo' } }), 400, 'dataset_invalid', 'training_file', /conversations.*pairs/)
  const mixed = { method: { type: 'supervised', dpo: { hyperparameters: {} } } }
  await refused(create(mixed), 400, 'invalid_request', 'method.dpo')
  await refused(create(hyperparameters({ beta: 0.1 })), 400, 'unknown_field', `${at}.beta`)
  await refused(create({ n_epochs: 3 }), 400, 'parameter_not_supported', 'n_epochs', /method\.supervised/)
  await refused(create(hyperparameters({ n_epochs: 51 })), 400, 'invalid_request', `${at}.n_epochs`)
  await refused(
    create(hyperparameters({ learning_rate_multiplier: 500 })),
    400,
    'invalid_request',
    `${at}.learning_rate_multiplier`,
    /at most 100/,
  )
  await refused(create({ ...hyperparameters({}), hyperparameters: {} }), 400, 'invalid_request', 'hyperparameters')
  await refused(create({ suffix: 'x'.repeat(65) }), 400, 'invalid_request', 'suffix')
  await refused(create({ metadata: { key: 'x'.repeat(513) } }), 400, 'invalid_request', 'metadata.key')
  const wandb = [{ type: 'wandb', wandb: { project: 'p' } }]
  await refused(create({ integrations: wandb }), 400, 'parameter_not_supported', 'integrations', /TUNERY_TRACKING/)
  const jobs = (await openai.fineTuning.jobs.list()).data
  assert.ok(
    jobs.every(({ status }) => ['succeeded', 'cancelled'].includes(status)),
    'no refused request made a job',
  )
})

test('auto and null mean the defaults, and the older place of hyperparameters works', async () => {
  const auto = { n_epochs: 'auto', batch_size: 'auto', learning_rate_multiplier: 'auto' }
  const job = await create({
    hyperparameters: auto,
    suffix: null,
    metadata: null,
    seed: null,
    validation_file: null,
    integrations: null,
  })
  assert.deepEqual(job.hyperparameters, { n_epochs: 2, batch_size: 4, learning_rate_multiplier: 1 })
  await openai.fineTuning.jobs.cancel(job.id)
  const old = await create({ hyperparameters: { n_epochs: 1 } })
  assert.equal(old.hyperparameters.n_epochs, 1)
  await openai.fineTuning.jobs.cancel(old.id)
})

test('an Idempotency-Key makes one job of a request that is sent twice', async () => {
  const send = () => app.api('POST', '/fine_tuning/jobs', { model: tiny, training_file }, { 'idempotency-key': 'once' })
  const [first, second] = [await send(), await send()]
  assert.equal(second.body.id, first.body.id)
  assert.equal(second.headers.get('idempotent-replayed'), 'true')
  await openai.fineTuning.jobs.cancel(first.body.id)
})
