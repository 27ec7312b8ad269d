// OpenAI's batches, with OpenAI's own client: requests of a file, answered in the background.
import assert from 'node:assert/strict'
import { readFileSync, rmSync } from 'node:fs'
import path from 'node:path'
import { after, before, test } from 'node:test'
import OpenAI from 'openai'
import { openDatabase } from '../../server/platform/db/open.ts'
import { until } from '../support/client.ts'
import { full } from '../support/full.ts'
import { dataFolder, type RunningServer } from '../support/server.ts'
import { tiny } from '../support/tiny.ts'

const folder = dataFolder('batches')
after(() => folder.remove())
let server: RunningServer
let openai: OpenAI
before(async () => {
  server = await folder.start()
  openai = clientOf()
})
const clientOf = () => new OpenAI({ baseURL: server.url, apiKey: folder.key(), maxRetries: 0 })

const completion_window = '24h'
type Endpoint = OpenAI.BatchCreateParams['endpoint']
const line = (custom_id: unknown, body: unknown = {}, more = {}, url = '/v1/chat/completions') =>
  JSON.stringify({ custom_id, method: 'POST', url, body, ...more })
const chat = (content: string, more = {}) => ({
  model: tiny,
  messages: [{ role: 'user', content }],
  max_tokens: 4,
  temperature: 0,
  ...more,
})
const upload = (lines: string[], purpose = 'batch' as const) =>
  openai.files.create({ file: new File([`${lines.join('\n')}\n`], 'requests.jsonl'), purpose })
async function start(lines: string[], endpoint: Endpoint = '/v1/chat/completions', more = {}) {
  const { id } = await upload(lines)
  return openai.batches.create({ input_file_id: id, endpoint, completion_window, ...more })
}
const ended = (id: string) =>
  until('the batch to end', async () => {
    const batch = await openai.batches.retrieve(id)
    return ['completed', 'failed', 'expired', 'cancelled'].includes(batch.status) ? batch : undefined
  })
interface ResultLine {
  id: string
  custom_id: string
  // biome-ignore lint/suspicious/noExplicitAny: any body of that API
  response: { status_code: number; request_id: string; body: any } | null
  error: { code: string; message: string } | null
}
async function readResults(file: string | null | undefined): Promise<ResultLine[]> {
  const text = await (await openai.files.content(file!)).text()
  return text
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line))
}
const refused = (promise: Promise<unknown>, status: number, code: string, param: string) =>
  assert.rejects(promise, (error: InstanceType<typeof OpenAI.APIError>) => {
    assert.deepEqual([error.status, error.code, error.param], [status, code, param], error.message)
    return true
  })

test('each request of a file is answered or has its error, and the usage is metered', async () => {
  const lines = [
    ...['red', 'green', 'blue'].map((colour) => line(colour, chat(`code of ${colour}?`))),
    line('unknown', chat('hi', { model: 'nobody/none' })),
    line('wrong', chat('hi', { temperature: 'warm' })),
  ]
  const created = await start(lines, '/v1/chat/completions', { metadata: { kind: 'nightly' } })
  assert.deepEqual([created.object, created.status, created.metadata], ['batch', 'validating', { kind: 'nightly' }])
  const batch = await ended(created.id)
  assert.equal(batch.status, 'completed')
  assert.deepEqual(batch.request_counts, { total: 5, completed: 3, failed: 2 })
  assert.equal(batch.model, undefined, 'its requests name several models')
  const answers = await readResults(batch.output_file_id)
  assert.deepEqual(answers.map(({ custom_id }) => custom_id).sort(), ['blue', 'green', 'red'])
  for (const { response, error } of answers) {
    assert.deepEqual([response!.status_code, error, response!.body.object], [200, null, 'chat.completion'])
    assert.equal(response!.body.model, tiny)
  }
  const errors = new Map((await readResults(batch.error_file_id)).map((result) => [result.custom_id, result.response!]))
  assert.deepEqual(
    [errors.get('unknown')!.status_code, errors.get('unknown')!.body.error.code],
    [404, 'model_not_found'],
  )
  assert.deepEqual([errors.get('wrong')!.status_code, errors.get('wrong')!.body.error.param], [400, 'temperature'])
  const tokens = answers.reduce((sum, { response }) => sum + response!.body.usage.total_tokens, 0)
  assert.equal(batch.usage!.total_tokens, tokens)
  assert.deepEqual((await openai.batches.list({ limit: 1 })).data[0]!.id, created.id)
  assert.equal((await openai.files.retrieve(batch.output_file_id!)).purpose, 'batch_output')
  await refused(openai.batches.cancel(created.id), 400, 'batch_not_cancellable', 'batch_id')
})

test('completions and embeddings are batched too', async () => {
  const url = '/v1/completions'
  const batch = await ended((await start([line('a', { model: tiny, prompt: 'x', max_tokens: 2 }, {}, url)], url)).id)
  assert.deepEqual(batch.request_counts, { total: 1, completed: 1, failed: 0 })
  assert.deepEqual([batch.model, batch.error_file_id], [tiny, null])
})

test('a file with wrong lines ends the batch as failed, with each line and what is wrong', async () => {
  const batch = await ended(
    (
      await start([
        line('a', chat('hi')),
        'not json',
        line('a', chat('hi')),
        line(7, chat('hi')),
        line('b', chat('hi'), { method: 'GET' }),
        line('c', chat('hi'), { url: '/v1/embeddings' }),
        line('d', []),
        line('e', {}),
        line('f', chat('hi', { stream: true })),
      ])
    ).id,
  )
  assert.equal(batch.status, 'failed')
  assert.deepEqual(
    batch.errors!.data!.map(({ line, code, param }) => [line, code, param]),
    [
      [2, 'invalid_json_line', null],
      [3, 'duplicate_custom_id', 'custom_id'],
      [4, 'invalid_custom_id', 'custom_id'],
      [5, 'invalid_method', 'method'],
      [6, 'mismatched_url', 'url'],
      [7, 'invalid_body', 'body'],
      [8, 'missing_model', 'body.model'],
      [9, 'invalid_stream', 'body.stream'],
    ],
  )
  const empty = await ended((await start([''])).id)
  assert.deepEqual([empty.status, empty.errors!.data![0]!.code], ['failed', 'empty_file'])
})

test('what cannot become a batch is refused at once', async () => {
  const { id } = await upload([line('a', chat('hi'))])
  const create = (more: object) =>
    openai.batches.create({ input_file_id: id, endpoint: '/v1/chat/completions', completion_window, ...more })
  await refused(create({ input_file_id: 'file-none' }), 404, 'file_not_found', 'input_file_id')
  await refused(create({ endpoint: '/v1/moderations' }), 400, 'invalid_request', 'endpoint')
  await refused(create({ completion_window: '1h' }), 400, 'invalid_request', 'completion_window')
  const notes = await openai.files.create({ file: new File(['notes'], 'notes.txt'), purpose: 'user_data' })
  await refused(create({ input_file_id: notes.id }), 400, 'invalid_request', 'input_file_id')
  await refused(openai.batches.retrieve('batch_none'), 404, 'batch_not_found', 'batch_id')
})

test('a server killed within a batch asks no answered line twice; a live request goes first', async () => {
  const count = 60
  const lines = Array.from({ length: count }, (_, index) =>
    line(`${index}`, chat(`colour ${index}?`, { max_tokens: 100, temperature: 2 })),
  )
  const { id } = await start(lines)
  await until('some answers', async () => {
    const { completed } = (await openai.batches.retrieve(id)).request_counts!
    return completed > 3 || undefined
  })
  const live = await openai.chat.completions.create(chat('now') as OpenAI.ChatCompletionCreateParamsNonStreaming)
  assert.equal(live.choices.length, 1)
  const before = (await openai.batches.retrieve(id)).request_counts!
  assert.ok(before.completed < count, `${before.completed} of ${count}`)

  await server.end('SIGKILL')
  const partial = readFileSync(path.join(folder.dataDir, 'batches', id, 'output.jsonl'), 'utf8')
    .split('\n')
    .slice(0, -1)
  assert.ok(partial.length >= before.completed)
  server = await folder.start()
  openai = clientOf()
  const batch = await ended(id)
  assert.deepEqual([batch.status, batch.request_counts], ['completed', { total: count, completed: count, failed: 0 }])
  const answers = await readResults(batch.output_file_id)
  assert.deepEqual(
    answers.map(({ custom_id }) => Number(custom_id)).sort((a, b) => a - b),
    Array.from({ length: count }, (_, index) => index),
  )
  const text = await (await openai.files.content(batch.output_file_id!)).text()
  assert.deepEqual(text.split('\n').slice(0, partial.length), partial, 'what was answered is kept')
  const requests = answers.map(({ response }) => response!.request_id)
  assert.equal(new Set(requests).size, count)

  const cancelled = await start(lines)
  await until('it to begin', async () => (await openai.batches.retrieve(cancelled.id)).status === 'in_progress')
  await assert.rejects(openai.files.delete(cancelled.input_file_id), /needed by the batch/)
  assert.equal((await openai.batches.cancel(cancelled.id)).status, 'cancelling')
  const end = await ended(cancelled.id)
  assert.equal(end.status, 'cancelled')
  const { completed, failed, total } = end.request_counts!
  assert.deepEqual([completed + failed, total], [count, count])
  assert.equal((await readResults(end.error_file_id)).at(-1)!.error!.code, 'batch_cancelled')
})

const longLines = (count: number) =>
  Array.from({ length: count }, (_, index) => line(`${index}`, chat(`${index}?`, { max_tokens: 100, temperature: 2 })))
const inProgress = (id: string, answers = 0) =>
  until('it to be answered', async () => {
    const { status, request_counts } = await openai.batches.retrieve(id)
    return (status === 'in_progress' && request_counts!.completed >= answers) || undefined
  })

test('a batch that is cancelled before its file was read ends at once; a suspended account’s rests', async () => {
  const { id } = await start(longLines(200))
  await inProgress(id, 1)
  const other = await start(['a,b', 'no requests'])
  assert.equal((await openai.batches.retrieve(other.id)).status, 'validating', 'another batch is worked on')
  const cancelled = await openai.batches.cancel(other.id)
  assert.deepEqual([cancelled.status, cancelled.output_file_id], ['cancelled', null])
  await openai.files.delete(other.input_file_id)

  const db = await openDatabase(folder.dataDir)
  const entry = db.selectFrom('queue_entries').select('status').where('ref', '=', id)
  await db.updateTable('accounts').set({ suspended_at: Date.now() }).execute()
  await until('it to rest', async () => (await entry.executeTakeFirstOrThrow()).status === 'waiting')
  await db.updateTable('accounts').set({ suspended_at: null }).execute()
  await db.destroy()
  await until('the account to be let in again', () => openai.batches.cancel(id).catch(() => undefined))
  assert.equal((await ended(id)).status, 'cancelled')
})

test('a batch whose unpublished results are gone, as in a restored backup, is answered again', full, async () => {
  const { id } = await start(longLines(20))
  await inProgress(id)
  await server.end('SIGKILL')
  const db = await openDatabase(folder.dataDir)
  const values = { status: 'finalizing' as const, ending: 'completed' as const, completed: 20 }
  await db.updateTable('batches').set(values).where('id', '=', id).execute()
  await db.destroy()
  rmSync(path.join(folder.dataDir, 'batches', id), { recursive: true, force: true })
  server = await folder.start()
  openai = clientOf()
  const batch = await ended(id)
  assert.deepEqual([batch.status, batch.request_counts!.completed], ['completed', 20])
  assert.equal((await readResults(batch.output_file_id)).length, 20)
  assert.equal(await server.end('SIGTERM'), 0)
})
