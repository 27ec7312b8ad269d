// The life of a job through the public API, on a tiny real checkpoint: upload, train, deploy, chat, cancel, events. The
// demo's test shows that a real base learns.
import assert from 'node:assert/strict'
import { existsSync } from 'node:fs'
import path from 'node:path'
import { before, test } from 'node:test'
import OpenAI from 'openai'
import type { Job, JobEvent } from '../../contract/fine-tuning.ts'
import { colourRows, until } from '../support/client.ts'
import { full } from '../support/full.ts'
import { appOfTests } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'

const app = appOfTests()
let dataset: string
before(async () => {
  await app.started
  dataset = (await app.upload(colourRows(16))).body.id
})

const create = (training_config: object, more: object = {}) =>
  app.api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id: dataset, config: { training_config }, ...more })
const labels = { name: 'Tickets "v2"', description: 'of\nMay', metadata: { team: 'support' } }
/** The completed job of the first test. */
let completed: Job

test('from upload to a tuned answer: the job reports progress, its loss falls, a deployment serves it', async () => {
  const created = await create({ epochs: 50, batch_size: 8, learning_rate: 0.02 }, labels)
  assert.equal(created.status, 201)
  assert.equal(created.body.status, 'queued')
  assert.equal(created.body.progress, 0)
  assert.deepEqual(created.body.resolved_config.training_config.learning_rate, { value: 0.02, source: 'request' })
  assert.deepEqual(created.body.resolved_config.lora_config.r, { value: 16, source: 'default' })
  assert.equal(created.body.resolved_config.lora_config.target_modules.value.length, 7)
  const { id } = created.body

  const events: JobEvent[] = []
  for await (const event of app.events(id)) events.push(event)
  assert.deepEqual(
    events.map((event) => event.seq),
    events.map((_, index) => index + 1),
    'sequence numbers have no gaps',
  )
  const metrics = events.filter((event) => event.type === 'metrics')
  assert.ok(metrics.length >= 3)
  for (const field of ['loss', 'learning_rate', 'tokens_per_second'])
    assert.equal(typeof metrics[0]!.data![field], 'number', field)
  const progress = events.filter((event) => event.type === 'progress').map((event) => event.data!.progress as number)
  assert.deepEqual(
    progress,
    progress.toSorted((a, b) => a - b),
    'progress never goes back',
  )
  assert.deepEqual(
    events.filter((event) => event.data?.status).map((event) => event.data!.status),
    ['queued', 'running', 'completed'],
  )
  assert.ok(!JSON.stringify(events).includes(app.dataDir), 'no path of the machine leaks')

  const job = await app.job(id)
  assert.equal(job.status, 'completed')
  completed = job
  assert.equal(job.progress, 1)
  assert.ok(job.metrics.train_loss! < (metrics[0]!.data!.loss as number), 'the loss fell')
  const losses = new Map(events.flatMap(({ data }) => (data?.losses ?? []) as [number, number][]))
  assert.equal(job.metrics.loss, losses.get(job.metrics.step!), 'the curve ends with the loss that the job has')
  assert.ok(job.trained_tokens > 0 && job.trained_tokens % 50 === 0, 'tokens times epochs')
  assert.ok(job.started_at! >= job.created_at && job.finished_at! > job.started_at!)
  await until('the run folder to be removed', () => !existsSync(path.join(app.dataDir, 'runs', id)))

  const deployed = await app.api('POST', '/deployments', { model: job.model, name: 'colours' })
  assert.equal(deployed.status, 201)
  assert.equal(deployed.body.status, 'ready')
  const answerOf = async (model: string) =>
    (
      await app.api('POST', '/chat/completions', {
        model,
        messages: [{ role: 'user', content: 'code of blue?' }],
        temperature: 0,
        max_tokens: 8,
      })
    ).body.choices[0].message.content
  const [tuned, base] = [await answerOf(job.model!), await answerOf(tiny)]
  assert.notEqual(tuned, base, 'the adapter changes the answer')
  assert.equal(await answerOf('colours'), tuned)
  // The name switches to another model and back, and stops working when deleted.
  assert.equal((await app.api('PUT', '/deployments/colours', { model: tiny })).body.model, tiny)
  assert.equal(await answerOf('colours'), base)
  await app.api('PUT', '/deployments/colours', { model: job.model })
  assert.equal(await answerOf('colours'), tuned)
  assert.deepEqual(
    (await app.api('GET', '/deployments')).body.items.map((item: { name: string }) => item.name),
    ['colours'],
  )
  assert.equal((await app.api('DELETE', '/deployments/colours')).body.deleted, true)
  assert.equal(
    (await app.api('POST', '/chat/completions', { model: 'colours', messages: [{ role: 'user', content: 'x' }] }))
      .status,
    404,
  )
})

for (const [method, learning_rate] of [
  ['qlora', 0.02],
  ['full', 0.005],
] as const)
  test(`${method}: from upload to a tuned answer`, full, async () => {
    const config = { method, training_config: { epochs: 20, batch_size: 8, learning_rate } }
    const created = await app.api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id: dataset, config })
    assert.deepEqual(created.body.resolved_config.method, { value: method, source: 'request' })
    assert.equal(created.body.resolved_config.lora_config === null, method === 'full')
    const job = await app.untilEnded(created.body.id)
    assert.equal(job.status, 'completed', JSON.stringify(job.error))
    const answerOf = async (model: string) =>
      (
        await app.api('POST', '/chat/completions', {
          model,
          messages: [{ role: 'user', content: 'code of blue?' }],
          temperature: 0,
          max_tokens: 8,
        })
      ).body.choices[0].message.content
    assert.notEqual(await answerOf(job.model!), await answerOf(tiny), 'the training changes the answer')
    assert.equal((await app.api('POST', '/deployments', { model: job.model, name: method })).body.status, 'ready')
    assert.equal(await answerOf(method), await answerOf(job.model!))
  })

test('a job continues an earlier result: an adapter, a whole model, an adapter on a whole model', full, async () => {
  const train = async (model_id: string, config: object) => {
    const created = await app.api('POST', '/fine-tuning/jobs', { model_id, dataset_id: dataset, config })
    assert.equal(created.status, 201, JSON.stringify(created.body))
    const job = await app.untilEnded(created.body.id)
    assert.equal(job.status, 'completed', JSON.stringify(job.error))
    const losses: number[] = []
    for await (const event of app.events(job.id)) if (event.type === 'metrics') losses.push(event.data!.loss as number)
    return { ...job, first_loss: losses[0]! }
  }
  const training_config = { epochs: 50, batch_size: 8, learning_rate: 0.02 }
  const first = await train(tiny, { lora_config: { r: 8 }, training_config })
  const second = await train(first.model!, { training_config: { epochs: 1 } })
  assert.deepEqual(second.resolved_config.lora_config!.r, { value: 8, source: 'model' })
  assert.ok(
    second.first_loss < first.first_loss - 0.2,
    `it starts with what the first learned: ${second.first_loss}, ${first.first_loss}`,
  )
  const whole = await train(first.model!, { method: 'full', training_config: { epochs: 1 } })
  assert.ok(whole.first_loss < first.first_loss - 0.2, 'the adapter was merged')
  const onWhole = await train(whole.model!, { method: 'qlora', training_config: { epochs: 1 } })
  assert.ok(onWhole.first_loss < first.first_loss - 0.2)
  const last = await train(onWhole.model!, { training_config: { epochs: 1 } })
  for (const { model } of [second, whole, onWhole, last])
    assert.equal(
      (await app.api('POST', '/chat/completions', { model, messages: [{ role: 'user', content: 'x' }], max_tokens: 2 }))
        .status,
      200,
    )
  const describe = async (id: string) => (await app.api('GET', `/fine-tuning/models/${id}`)).body
  const { sha256 } = (await app.api('GET', `/datasets/${dataset}`)).body
  assert.equal((await describe(first.model!)).parent_model_id, null)
  assert.deepEqual(
    [(await describe(second.model!)).parent_model_id, (await describe(second.model!)).weights_model_id],
    [first.model, null],
  )
  const { lineage, parent_model_id, weights_model_id } = await describe(last.model!)
  assert.deepEqual([parent_model_id, weights_model_id, lineage.base_model_id], [onWhole.model, whole.model, tiny])
  assert.deepEqual(
    lineage.steps.map(({ model_id, job_id, method, dataset }: Record<string, unknown>) => ({
      model_id,
      job_id,
      method,
      dataset,
    })),
    [first, whole, onWhole, last].map(({ model, id, resolved_config }) => ({
      model_id: model,
      job_id: id,
      method: resolved_config.method.value,
      dataset: { id: dataset, name: 'rows', sha256 },
    })),
  )
  const refused = await app.api('POST', '/fine-tuning/jobs', {
    model_id: first.model,
    dataset_id: dataset,
    config: { lora_config: { r: 16 } },
  })
  assert.match(refused.body.error.message, /'config.lora_config.r'.* has 8/)
  const stranger = await app.other.api('POST', '/fine-tuning/jobs', { model_id: first.model, dataset_id: dataset })
  assert.equal(stranger.body.error.code, 'model_not_found')
})

test('a reader of events can resume after any event and misses none', async () => {
  const { id } = completed
  const all: JobEvent[] = []
  for await (const event of app.events(id)) all.push(event)
  const rest: JobEvent[] = []
  for await (const event of app.events(id, 3)) rest.push(event)
  assert.deepEqual(rest, all.slice(3))
})

test('jobs train one at a time, in order; queued and running jobs can be cancelled, repeatedly', full, async () => {
  const long = (await create({ epochs: 50, batch_size: 1 })).body.id
  const second = (await create({ epochs: 1 })).body.id
  const third = (await create({ epochs: 1 })).body.id
  await app.untilEvent(long, (event) => event.type === 'metrics')
  assert.equal((await app.job(second)).status, 'queued')
  const waiting = [await app.job(second), await app.job(third)]
  assert.deepEqual(
    waiting.map(({ queue_position }) => queue_position),
    [1, 2],
  )
  assert.ok(waiting[1]!.estimated_start! > waiting[0]!.estimated_start!, 'the estimate includes the jobs before it')
  assert.ok(Date.parse(waiting[0]!.estimated_start!) > Date.now() - 60_000)
  assert.equal((await app.api('DELETE', `/datasets/${dataset}`)).body.error.code, 'in_use')

  assert.equal((await app.api('POST', `/fine-tuning/jobs/${second}/cancel`)).body.status, 'cancelled')
  const cancelled = await app.api('POST', `/fine-tuning/jobs/${long}/cancel`)
  assert.equal(cancelled.status, 200)
  assert.deepEqual([cancelled.body.queue_position, cancelled.body.estimated_start], [null, null])
  assert.equal(cancelled.body.status, 'cancelled')
  assert.deepEqual((await app.api('POST', `/fine-tuning/jobs/${long}/cancel`)).body, cancelled.body)

  assert.equal((await app.untilEnded(third)).status, 'completed')
  const job = await app.job(long)
  assert.equal(job.status, 'cancelled')
  assert.equal(job.model, null)
  assert.equal((await app.job(second)).started_at, null, 'a job cancelled in the queue never starts')
  await until(
    'the run folder of the cancelled job to be removed',
    () => !existsSync(path.join(app.dataDir, 'runs', long)),
  )
  const list = (await app.api('GET', '/fine-tuning/jobs?limit=2')).body
  assert.equal(list.has_more, true)
  assert.deepEqual(
    list.items.map((item: { id: string }) => item.id),
    [third, second],
  )
  assert.equal((await app.api('GET', `/fine-tuning/jobs?limit=1&after=${second}`)).body.items[0].id, long)
})

test('jobs and models keep the labels that their owner sets, and are found by name', async () => {
  const unnamed = (await create({ epochs: 1 })).body
  await app.api('POST', `/fine-tuning/jobs/${unnamed.id}/cancel`)
  assert.equal(unnamed.name, 'rows · tiny')
  const { id, model } = completed
  const labelsOf = ({ name, description, metadata }: Record<string, unknown>) => ({ name, description, metadata })
  for (const [path, key] of [
    [`/fine-tuning/jobs/${id}`, 'job'],
    [`/fine-tuning/models/${model}`, 'model'],
  ] as const) {
    assert.deepEqual(labelsOf((await app.api('GET', path)).body), labels, key)
    const changed = await app.api('PATCH', path, { name: `renamed ${key}`, metadata: { a: 'b' } })
    assert.deepEqual(
      [changed.status, labelsOf(changed.body)],
      [200, { name: `renamed ${key}`, description: labels.description, metadata: { a: 'b' } }],
    )
    const list = path.slice(0, path.lastIndexOf('/'))
    const jobs = (await app.api('GET', `${list}?name=RENAMED&sort=name&order=desc`)).body.items
    assert.deepEqual(
      jobs.map(({ id }: { id: string }) => id),
      [path.slice(list.length + 1)],
    )
    for (const bad of [
      { name: '' },
      { name: null },
      { metadata: { a: 1 } },
      { status: 'queued' },
      { description: 'x'.repeat(2001) },
    ])
      assert.equal((await app.api('PATCH', path, bad)).status, 400, JSON.stringify(bad).slice(0, 60))
    assert.equal((await app.other.api('PATCH', path, { name: 'theirs' })).status, 404)
  }
  assert.deepEqual((await app.api('GET', '/datasets?name=nothing')).body.items, [])
  assert.equal((await app.api('GET', '/fine-tuning/models?status=queued')).status, 400)
})

test('a job whose trainer dies three times without a checkpoint fails with the reason', full, async () => {
  const { id } = (await create({ epochs: 50, batch_size: 1, learning_rate: 0.1 })).body
  await app.untilEvent(id, (event) => event.type === 'metrics')
  // Kills its trainer each time it starts.
  const { execFileSync } = await import('node:child_process')
  let kills = 0
  const killer = setInterval(() => {
    try {
      const pids = execFileSync('pgrep', ['-f', `trainer.cli.train .*${id}`], { encoding: 'utf8' })
        .trim()
        .split('\n')
      for (const pid of pids) process.kill(Number(pid), 'SIGKILL')
      kills++
    } catch {}
  }, 200)
  const job = await app.untilEnded(id)
  clearInterval(killer)
  assert.ok(kills >= 3)
  assert.equal(job.status, 'failed')
  assert.equal(job.error?.code, 'trainer_crashed')
  assert.match(job.error!.message, /SIGKILL, 3 times/)
})

test('the official OpenAI client lists models, chats, streams and reads errors', async () => {
  const openai = new OpenAI({ baseURL: app.url, apiKey: app.key, maxRetries: 0 })
  const ids = (await openai.models.list()).data.map((model) => model.id)
  assert.ok(ids.includes(tiny))
  const messages = [{ role: 'user' as const, content: 'code of red?' }]
  const answer = await openai.chat.completions.create({
    model: tiny,
    messages,
    max_completion_tokens: 5,
    temperature: 0,
  })
  assert.equal(answer.choices[0]!.finish_reason, 'length')
  assert.equal(answer.usage!.completion_tokens, 5)
  const stream = await openai.chat.completions.create({
    model: tiny,
    messages,
    max_tokens: 5,
    temperature: 0,
    stream: true,
    stream_options: { include_usage: true },
  })
  let text = ''
  let usage: OpenAI.CompletionUsage | null | undefined
  const ends: unknown[] = []
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta.content ?? ''
    if (chunk.choices[0]?.finish_reason) ends.push(chunk.choices[0].finish_reason)
    usage = chunk.usage ?? usage
  }
  assert.equal(text, answer.choices[0]!.message.content, 'streamed and whole answers are equal')
  assert.deepEqual(ends, ['length'])
  const counts = ({ prompt_tokens, completion_tokens, total_tokens }: OpenAI.CompletionUsage) => [
    prompt_tokens,
    completion_tokens,
    total_tokens,
  ]
  assert.deepEqual(counts(usage!), counts(answer.usage!))
  await assert.rejects(
    openai.chat.completions.create({ model: 'nobody', messages }),
    (error: InstanceType<typeof OpenAI.APIError>) => error.status === 404 && error.code === 'model_not_found',
  )
  const stranger = new OpenAI({ baseURL: app.url.replace('/v1', '/api/v1'), apiKey: 'wrong', maxRetries: 0 })
  await assert.rejects(stranger.models.list(), (error: InstanceType<typeof OpenAI.APIError>) => error.status === 401)
})

test('concurrent requests are decoded in one batch and each gets its own answer', async () => {
  const chat = (content: string) =>
    app.api('POST', '/chat/completions', {
      model: tiny,
      messages: [{ role: 'user', content }],
      temperature: 0,
      max_tokens: 6,
    })
  const alone = await Promise.all(
    ['red', 'blue'].map(async (text) => (await chat(text)).body.choices[0].message.content),
  )
  const together = await Promise.all(Array.from({ length: 40 }, (_, index) => chat(index % 2 ? 'blue' : 'red')))
  for (const [index, { status, body }] of together.entries()) {
    assert.equal(status, 200)
    assert.equal(body.choices[0].message.content, alone[index % 2])
  }
})
