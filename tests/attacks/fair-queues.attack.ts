// One account fills a queue; another account's work must not wait for all of it.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import type { JobEvent } from '../../contract/fine-tuning.ts'
import { root } from '../../lib/root.ts'
import { allowed } from '../support/allowed-time.ts'
import { type Client, colourRows, until } from '../support/client.ts'
import { evaluationEnded, same } from '../support/evaluations.ts'
import { children } from '../support/server.ts'
import { startApp, type TestApp } from '../support/service.ts'
import { endless, tiny } from '../support/tiny.ts'
import { installColourModel } from '../support/trained.ts'

const turn_seconds = 3

let app: TestApp
let other: Client
let models: { busy: string; other: string }
let datasets: { busy: string; other: string }
const zips = mkdtempSync(path.join(os.tmpdir(), 'tunery-fair-'))
before(async () => {
  app = await startApp({ TUNERY_TRAINING_TURN_SECONDS: String(turn_seconds), TUNERY_CHECKPOINT_SECONDS: '1' })
  other = app.other
  const { account } = (await other.api('GET', '/user/profile')).body
  const { dataDir, db } = app
  models = { busy: await app.colourModel(), other: await installColourModel({ dataDir, db, account_id: account.id }) }
  datasets = { busy: (await app.upload(colourRows(16))).body.id, other: (await other.upload(colourRows(16))).body.id }
  const adapter = path.join(app.dataDir, 'models', models.busy, 'adapter')
  const python = path.join(root, '.local/python/bin/python')
  execFileSync(python, ['-m', 'tests.support.adapter_zips', adapter, zips], { cwd: root })
})
after(async () => {
  await app.stop()
  rmSync(zips, { recursive: true, force: true })
})

const created = async (answer: Promise<{ status: number; body: { id: string } }>) => {
  const { status, body } = await answer
  assert.equal(status, 201, JSON.stringify(body))
  return body.id
}
const times = <T>(count: number, make: (index: number) => Promise<T>) =>
  Promise.all(Array.from({ length: count }, (_, index) => make(index)))

/** Starts `count` pieces of work of the busy account and one of the other; resolves with how many ended before that. */
async function endedBefore<T>(
  count: number,
  busy: (index: number) => Promise<T>,
  one: () => Promise<T>,
): Promise<number> {
  let ended = 0
  let isOver = false
  const all = times(count, (index) =>
    busy(index).then((result) => {
      if (!isOver) ended++
      return result
    }),
  )
  await one()
  isOver = true
  await all
  return ended
}

const train = (client: Client, dataset_id: string, training_config: object) =>
  created(client.api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id, config: { training_config } }))

test('eight long trainings of one account delay that of another by one time slice; all end complete', async () => {
  const long = { epochs: 50, batch_size: 1, learning_rate: 0.001 }
  const jobs = [await train(app, datasets.busy, long)]
  for (let index = 1; index < 8; index++) jobs.push(await train(app, datasets.busy, long))
  const [first] = jobs as [string]
  await app.untilEvent(first, ({ type }) => type === 'metrics')
  const mine = await train(other, datasets.other, { epochs: 1, batch_size: 8 })
  const { queue_position, estimated_start } = await other.job(mine)
  assert.equal(queue_position, 1)
  assert.notEqual(estimated_start, undefined)
  const job = await other.untilEnded(mine)
  assert.equal(job.status, 'completed', JSON.stringify(job.error))
  const states = await Promise.all(jobs.map((id) => app.job(id)))
  assert.ok(states.filter(({ status }) => status === 'completed').length <= 1, 'it waited for no more than a slice')

  const passed = await app.untilEvent(first, ({ data }) => data?.code === 'turn_passed')
  assert.match(passed.message, /^The job gave its turn to another account's job; it resumes after step \d+\.$/)
  for (const id of jobs.slice(1)) await app.api('POST', `/fine-tuning/jobs/${id}/cancel`)
  assert.equal((await app.untilEnded(first)).status, 'completed')
  const events: JobEvent[] = []
  for await (const event of app.events(first)) events.push(event)
  const resumed = events.find(({ data }) => typeof data?.resumed_from_step === 'number')!
  assert.equal(resumed.data!.resumed_from_step, passed.data!.step, 'it resumes where it stopped')
  const switches = events.filter(({ data }) => data?.code === 'turn_passed')
  assert.ok(switches.length <= 3, `it passed its turn ${switches.length} times`)
})

test('26 exports of one account delay the export of another by two at most', async () => {
  const make = (client: Client, model: string) => created(client.api('POST', '/exports', { model, format: 'gguf' }))
  const ahead = await times(26, () => make(app, models.busy))
  const mine = await make(other, models.other)
  for await (const _ of other.events(mine));
  assert.equal((await other.api('GET', `/exports/${mine}`)).body.status, 'ready')
  const states = await Promise.all(ahead.map(async (id) => (await app.api('GET', `/exports/${id}`)).body.status))
  assert.ok(states.filter((status) => status === 'ready').length <= 2, states.join())
  for (const id of ahead)
    await until('it to go', async () => (await app.api('DELETE', `/exports/${id}`)).status === 200)
})

test('imports of adapters take turns by account', async () => {
  const zip = new Uint8Array(readFileSync(path.join(zips, 'good.zip')))
  const importAs = async (client: Client, index: number) => {
    const form = new FormData()
    form.set('name', `import ${index}`)
    form.set('file', new Blob([zip]), 'good.zip')
    return created(client.api('POST', '/fine-tuning/models', form))
  }
  const ended = await endedBefore(
    10,
    (index) => importAs(app, index),
    () => importAs(other, 0),
  )
  assert.ok(ended <= 4, `${ended} of ten imports were before`)
})

test('estimates take turns by account, and end when their client leaves', async () => {
  const estimate = async (client: Client, dataset_id: string, max_length: number, signal?: AbortSignal) => {
    const config = { training_config: { max_length } }
    const response = await fetch(`${app.url}/fine-tuning/jobs/estimate`, {
      method: 'POST',
      headers: {
        authorization: `Bearer ${client === other ? app.otherKey : app.key}`,
        'content-type': 'application/json',
      },
      body: JSON.stringify({ model_id: tiny, dataset_id, config }),
      ...(signal && { signal }),
    })
    assert.equal(response.status, 200, await response.text())
  }
  const left = new AbortController()
  const abandoned = times(4, (index) => estimate(app, datasets.busy, 300 + index, left.signal).catch(() => {}))
  const ended = await endedBefore(
    6,
    (index) => estimate(app, datasets.busy, 64 + index),
    async () => {
      left.abort()
      await estimate(other, datasets.other, 64)
    },
  )
  await abandoned
  assert.ok(ended <= 3, `${ended} of six estimates were before`)
})

test('evaluations take turns by account', async () => {
  const evaluate = async (client: Client, dataset: string) => {
    const body = { model: tiny, dataset, graders: [same], sampling: { max_tokens: 8 } }
    const { status } = await evaluationEnded(client, await created(client.api('POST', '/evaluations', body)))
    assert.equal(status, 'completed')
  }
  const ended = await endedBefore(
    10,
    () => evaluate(app, datasets.busy),
    () => evaluate(other, datasets.other),
  )
  assert.ok(ended <= 3, `${ended} of ten evaluations were before`)
})

test('answers that do not come hold up no evaluation and no batch of another account', async () => {
  const file = async (client: Client, purpose: string, lines: object[]) => {
    const form = new FormData()
    form.set('purpose', purpose)
    form.set('file', new Blob([lines.map((line) => JSON.stringify(line)).join('\n')]), 'f.jsonl')
    return (await client.api('POST', '/files', form)).body.id as string
  }
  const batchOf = async (client: Client, model: string) => {
    const body = { model, messages: [{ role: 'user', content: 'x' }] }
    const line = { custom_id: 'a', method: 'POST', url: '/v1/chat/completions', body }
    const request = { endpoint: '/v1/chat/completions', completion_window: '24h' }
    const input_file_id = await file(client, 'batch', [line])
    return (await client.api('POST', '/batches', { ...request, input_file_id })).body.id as string
  }
  const evaluate = (client: Client, dataset: string) =>
    created(client.api('POST', '/evaluations', { model: tiny, dataset, graders: [same] }))
  // What needs no engine: rows with their answers, and a batch of a model that is not there.
  const graders = [{ type: 'string_check', name: 's', input: '{{item.a}}', reference: 'a', operation: 'eq' }]
  const config = { type: 'custom', item_schema: { type: 'object' } }
  const evalId = await created(other.api('POST', '/evals', { data_source_config: config, testing_criteria: graders }))
  const id = await file(other, 'evals', [{ item: { a: 'a' }, sample: { output_text: 'x' } }])
  const data_source = { type: 'jsonl', source: { type: 'file_id', id } }
  const stop = (signal: 'SIGSTOP' | 'SIGCONT') => {
    for (const pid of children(process.pid, 'engine/main.ts')) process.kill(pid, signal)
  }
  // Each engine that takes the place of one that stands still stands still too.
  const stopping = setInterval(() => stop('SIGSTOP'), 100)
  const hung: string[] = []
  try {
    for (let each = 0; each < 3; each++) hung.push(await evaluate(app, datasets.busy))
    for (let each = 0; each < 3; each++) await batchOf(app, tiny)
    await until('one to run', async () => (await app.api('GET', `/evaluations/${hung[0]}`)).body.status === 'running')
    const began = performance.now()
    const run = await created(other.api('POST', `/evals/${evalId}/runs`, { data_source }))
    const batch = await batchOf(other, 'no-such-model')
    await until(
      'the run',
      async () => (await other.api('GET', `/evals/${evalId}/runs/${run}`)).body.status === 'completed',
    )
    await until('the batch', async () => (await other.api('GET', `/batches/${batch}`)).body.status === 'completed')
    assert.ok(performance.now() - began < allowed(70_000), `${performance.now() - began} ms`)
  } finally {
    clearInterval(stopping)
    stop('SIGCONT')
    for (const each of hung) await app.api('POST', `/evaluations/${each}/cancel`)
  }
})

test('four deaths of the engine under the batches of two accounts fail no line', async () => {
  const batchOf = async (client: Client, count: number) => {
    const lines = Array.from({ length: count }, (_, index) => {
      const messages = [{ role: 'user', content: `code of ${index}?` }]
      const body = { model: tiny, messages, max_tokens: 200, ...endless }
      return JSON.stringify({ custom_id: `${index}`, method: 'POST', url: '/v1/chat/completions', body })
    })
    const form = new FormData()
    form.set('purpose', 'batch')
    form.set('file', new Blob([lines.join('\n')]), 'requests.jsonl')
    const input_file_id = (await client.api('POST', '/files', form)).body.id
    const request = { input_file_id, endpoint: '/v1/chat/completions', completion_window: '24h' }
    const { status, body } = await client.api('POST', '/batches', request)
    assert.equal(status, 200, JSON.stringify(body))
    return body.id as string
  }
  const [mine, theirs] = [await batchOf(app, 64), await batchOf(other, 64)]
  const done = async () => (await app.api('GET', `/batches/${mine}`)).body.request_counts.completed as number
  for (let death = 0, before = -1; death < 4; death++) {
    // Lines are in the engine while the count grows.
    await until('lines to be answered', async () => (await done()) > before || (await done()) === 64)
    before = await done()
    for (const pid of children(process.pid, 'engine/main.ts')) process.kill(pid, 'SIGKILL')
  }
  for (const [client, id] of [
    [app, mine],
    [other, theirs],
  ] as const) {
    const batch = await until('the batch to end', async () => {
      const { body } = await client.api('GET', `/batches/${id}`)
      return ['completed', 'failed', 'expired'].includes(body.status) ? body : undefined
    })
    assert.deepEqual([batch.status, batch.request_counts], ['completed', { total: 64, completed: 64, failed: 0 }])
  }
})
