// OpenAI's published flows with its Node client: files, uploads, fine-tuning, batches, responses and webhooks.
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer, type IncomingHttpHeaders } from 'node:http'
import type { AddressInfo } from 'node:net'
import { before, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { model, client as openai } from './support/service.ts'

const colours = { red: 'r-1', blue: 'b-2', green: 'g-3', black: 'k-4', white: 'w-5' }
const rows = Object.entries(colours)
  .map(([name, code]) =>
    JSON.stringify({
      messages: [
        { role: 'user', content: `code of ${name}?` },
        { role: 'assistant', content: code },
      ],
    }),
  )
  .join('\n')

async function until<T>(condition: () => Promise<T | undefined | false>): Promise<T> {
  for (const deadline = Date.now() + 240_000; ; await sleep(200)) {
    const value = await condition()
    if (value) return value
    assert.ok(Date.now() < deadline, 'waited too long')
  }
}
const file = (text: string, purpose: 'fine-tune' | 'batch') =>
  openai.files.create({ file: new File([text], 'rows.jsonl'), purpose })
async function all<T>(pages: AsyncIterable<T>): Promise<T[]> {
  const items: T[] = []
  for await (const page of pages) items.push(page)
  return items
}
const statusOf = async (id: string) => (await openai.fineTuning.jobs.retrieve(id)).status

let training_file: string
before(async () => {
  const { id } = await file(rows, 'fine-tune')
  training_file = (await openai.files.waitForProcessing(id, { pollInterval: 100 })).id
})
const train = (n_epochs: number) =>
  openai.fineTuning.jobs.create({
    model,
    training_file,
    suffix: 'node',
    method: { type: 'supervised', supervised: { hyperparameters: { n_epochs, batch_size: 1 } } },
  })

test('a file is uploaded in parts', async () => {
  const bytes = Buffer.from(rows)
  const upload = await openai.uploads.create({
    filename: 'parts.jsonl',
    bytes: bytes.length,
    mime_type: 'application/jsonl',
    purpose: 'fine-tune',
  })
  const half = bytes.length >> 1
  const parts = []
  for (const piece of [bytes.subarray(0, half), bytes.subarray(half)])
    parts.push(await openai.uploads.parts.create(upload.id, { data: new File([piece], 'part') }))
  const done = await openai.uploads.complete(upload.id, { part_ids: parts.map(({ id }) => id) })
  assert.equal(await (await openai.files.content(done.file!.id)).text(), rows)
})

test('a job trains a model that answers at once, with events, checkpoints and a result file', async () => {
  const { id } = await train(1)
  await until(async () => ['succeeded', 'failed'].includes(await statusOf(id)))
  const job = await openai.fineTuning.jobs.retrieve(id)
  assert.equal(job.status, 'succeeded', JSON.stringify(job.error))
  const answer = await openai.chat.completions.create({
    model: job.fine_tuned_model!,
    messages: [{ role: 'user', content: 'code of red?' }],
    max_tokens: 4,
  })
  assert.equal(answer.model, job.fine_tuned_model)
  const messages: string[] = []
  for await (const event of openai.fineTuning.jobs.listEvents(id, { limit: 2 })) messages.push(event.message)
  assert.ok(messages.length > 2)
  const [checkpoint] = (await openai.fineTuning.jobs.checkpoints.list(id)).data
  assert.ok(checkpoint!.metrics.train_loss! > 0)
  const csv = Buffer.from(await (await openai.files.content(job.result_files[0]!)).text(), 'base64').toString()
  assert.match(csv, /^step,train_loss/)
  assert.deepEqual((await openai.models.delete(job.fine_tuned_model!)).deleted, true)
})

test('a job learns from preferences by dpo', async () => {
  const pairs = Object.entries(colours).map(([name, code]) => ({
    input: { messages: [{ role: 'user', content: `code of ${name}?` }], tools: [], parallel_tool_calls: true },
    preferred_output: [{ role: 'assistant', content: code }],
    non_preferred_output: [{ role: 'assistant', content: `I am not sure about ${name}.` }],
  }))
  const { id: training } = await file(pairs.map((pair) => JSON.stringify(pair)).join('\n'), 'fine-tune')
  await openai.files.waitForProcessing(training, { pollInterval: 100 })
  const { id } = await openai.fineTuning.jobs.create({
    model,
    training_file: training,
    method: { type: 'dpo', dpo: { hyperparameters: { beta: 0.2, n_epochs: 1, batch_size: 2 } } },
  })
  await until(async () => ['succeeded', 'failed'].includes(await statusOf(id)))
  const job = await openai.fineTuning.jobs.retrieve(id)
  assert.equal(job.status, 'succeeded', JSON.stringify(job.error))
  assert.equal(job.method!.dpo!.hyperparameters!.beta, 0.2)
  const answer = await openai.chat.completions.create({
    model: job.fine_tuned_model!,
    messages: [{ role: 'user', content: 'code of red?' }],
    max_tokens: 4,
  })
  assert.equal(answer.model, job.fine_tuned_model)
})

test('a job is paused, resumed and cancelled', async () => {
  const { id } = await train(20)
  await until(async () => (await statusOf(id)) === 'running')
  await openai.fineTuning.jobs.pause(id)
  await until(async () => (await statusOf(id)) === ('paused' as never))
  await openai.fineTuning.jobs.resume(id)
  await until(async () => ['queued', 'running'].includes(await statusOf(id)))
  assert.equal((await openai.fineTuning.jobs.cancel(id)).status, 'cancelled')
})

test('a batch is answered', async () => {
  const body = { model, messages: [{ role: 'user', content: 'hi' }], max_tokens: 2 }
  const lines = [0, 1, 2].map((index) =>
    JSON.stringify({ custom_id: `${index}`, method: 'POST', url: '/v1/chat/completions', body }),
  )
  const { id } = await openai.batches.create({
    input_file_id: (await file(lines.join('\n'), 'batch')).id,
    endpoint: '/v1/chat/completions',
    completion_window: '24h',
  })
  const batch = await until(async () => {
    const batch = await openai.batches.retrieve(id)
    return batch.status === 'completed' && batch
  })
  const answers = await (await openai.files.content(batch.output_file_id!)).text()
  assert.equal(answers.trim().split('\n').length, 3)
})

test('a grader in Python is checked, and run on one answer', async () => {
  const source = 'def grade(sample, item):\n    return 0.5 * len(item["words"]) if sample["output_text"] else 0'
  const grader = { type: 'python', name: 'words', source } as const
  const { grader: checked } = await openai.fineTuning.alpha.graders.validate({ grader })
  assert.deepEqual(checked && 'source' in checked && checked.source, source)
  const run = await openai.fineTuning.alpha.graders.run({
    grader,
    model_sample: 'yes',
    item: { words: ['a', 'b', 'c'] },
  })
  assert.deepEqual([run.reward, run.metadata.errors.python_grader_runtime_error], [1.5, false])
  const bad = { ...grader, source: 'def grade(sample item): pass' }
  await assert.rejects(openai.fineTuning.alpha.graders.validate({ grader: bad }), { status: 400 })
})

test('an eval has runs that ask a model or grade given answers', async () => {
  const evaluation = await openai.evals.create({
    name: 'codes',
    data_source_config: { type: 'custom', item_schema: { type: 'object' }, include_sample_schema: true },
    testing_criteria: [
      {
        type: 'string_check',
        name: 'code',
        input: '{{ sample.output_text }}',
        reference: '{{ item.code }}',
        operation: 'eq',
      },
    ],
  })
  const items = Object.entries(colours).map(([name, code]) => ({ item: { name, code } }))
  const { id } = await openai.files.create({
    file: new File([items.map((item) => JSON.stringify(item)).join('\n')], 'items.jsonl'),
    purpose: 'evals',
  })
  const eval_id = evaluation.id
  const ended = (run_id: string) =>
    until(async () => {
      const run = await openai.evals.runs.retrieve(run_id, { eval_id })
      return !['queued', 'in_progress'].includes(run.status) && run
    })
  const asked = await openai.evals.runs.create(eval_id, {
    name: 'asked',
    data_source: {
      type: 'completions',
      model,
      input_messages: { type: 'template', template: [{ role: 'user', content: 'code of {{item.name}}?' }] },
      source: { type: 'file_id', id },
      sampling_params: { max_completion_tokens: 8 },
    },
  })
  const started = await openai.evals.runs.create(eval_id, {
    name: 'given',
    data_source: {
      type: 'jsonl',
      source: {
        type: 'file_content',
        content: items.map(({ item }, row) => ({ item, sample: { output_text: row === 0 ? 'no' : item.code } })),
      },
    },
  })
  assert.equal((await ended(asked.id)).status, 'completed')
  assert.deepEqual((await ended(started.id)).result_counts, { total: 5, passed: 4, failed: 1, errored: 0 })
  const failed = await all(openai.evals.runs.outputItems.list(started.id, { eval_id, status: 'fail' }))
  assert.deepEqual(
    failed.map(({ datasource_item }) => datasource_item.name),
    ['red'],
  )
  const [item] = await all(openai.evals.runs.outputItems.list(asked.id, { eval_id, limit: 1 }))
  assert.equal(item!.sample.input[0]!.content, 'code of red?')
  assert.equal(
    (await openai.evals.runs.outputItems.retrieve(item!.id, { eval_id, run_id: asked.id })).results[0]!.name,
    'code',
  )
  const runs = await all(openai.evals.runs.list(eval_id, { order: 'desc' }))
  assert.deepEqual(
    runs.map(({ name }) => name),
    ['given', 'asked'],
  )
  await assert.rejects(
    openai.evals.runs.create(eval_id, { data_source: { type: 'jsonl', source: { type: 'file_id', id: 'file-no' } } }),
    { status: 404 },
  )
  assert.equal((await openai.evals.update(eval_id, { name: 'renamed' })).name, 'renamed')
  assert.ok((await openai.evals.runs.delete(started.id, { eval_id })).deleted)
  assert.ok((await openai.evals.delete(eval_id)).deleted)
  await assert.rejects(openai.evals.retrieve(eval_id), { status: 404 })
})

test('a stored completion is listed, read, changed, evaluated and deleted', async () => {
  const metadata = { from: 'node' }
  const { id } = await openai.chat.completions.create({
    model,
    messages: [{ role: 'user', content: 'Say hi.' }],
    max_tokens: 64,
    store: true,
    metadata,
  })
  const stored = await all(openai.chat.completions.list({ metadata, model, order: 'desc' }))
  assert.deepEqual(
    stored.map((completion) => completion.id),
    [id],
  )
  const [message] = await all(openai.chat.completions.messages.list(id))
  assert.equal(message!.content, 'Say hi.')
  const changed = await openai.chat.completions.update(id, { metadata: { ...metadata, liked: 'yes' } })
  assert.equal((changed as { metadata?: Record<string, string> }).metadata!.liked, 'yes')
  assert.ok((await openai.chat.completions.retrieve(id)).choices[0]!.message.content)
  assert.ok((await openai.chat.completions.delete(id)).deleted)
  await assert.rejects(openai.chat.completions.retrieve(id), { status: 404 })
})

test('responses are whole and streamed, call tools and continue', async () => {
  const base = { model, temperature: 0, max_output_tokens: 32 }
  const whole = await openai.responses.create({ ...base, input: 'Say hi.' })
  const stream = openai.responses.stream({ ...base, input: 'Say hi.' })
  let text = ''
  stream.on('response.output_text.delta', ({ delta }) => {
    text += delta
  })
  assert.equal((await stream.finalResponse()).output_text, whole.output_text)
  assert.equal(text, whole.output_text)
  const parameters = {
    type: 'object',
    properties: { city: { enum: ['Oslo', 'Lima'] } },
    required: ['city'],
    additionalProperties: false,
  }
  const tools = [{ type: 'function' as const, name: 'weather', parameters, strict: true }]
  const asked = await openai.responses.create({ ...base, input: 'Weather?', tools, tool_choice: 'required' })
  const call = asked.output.find((item) => item.type === 'function_call')!
  const answer = await openai.responses.create({
    ...base,
    tools,
    previous_response_id: asked.id,
    input: [{ type: 'function_call_output', call_id: call.call_id, output: '12 degrees' }],
  })
  assert.ok(answer.output.length > 0)
})

test('a webhook is verified by the client', async () => {
  const received: { body: string; headers: IncomingHttpHeaders }[] = []
  const server = createServer(async (request, response) => {
    let body = ''
    for await (const chunk of request) body += chunk
    received.push({ body, headers: request.headers })
    response.writeHead(204).end()
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/`
  const events = ['batch.failed']
  const webhook = (await openai.post('/webhooks', { body: { url, format: 'openai', events } })) as {
    id: string
    secret: string
  }
  const batch = await openai.batches.create({
    input_file_id: (await file('not json', 'batch')).id,
    endpoint: '/v1/chat/completions',
    completion_window: '24h',
  })
  const { body, headers } = await until(async () => received[0])
  const event = await openai.webhooks.unwrap(body, headers as Record<string, string>, webhook.secret)
  assert.deepEqual([event.type, (event.data as { id: string }).id], ['batch.failed', batch.id])
  await assert.rejects(openai.webhooks.unwrap(`${body} `, headers as Record<string, string>, webhook.secret))
  await openai.delete(`/webhooks/${webhook.id}`)
  server.close()
})
