// Stored completions: answers that an account keeps, to look at and to learn from, and that are gone when deleted.
import assert from 'node:assert/strict'
import { readdirSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { before, test } from 'node:test'
import { until } from '../support/client.ts'
import { evaluationEnded } from '../support/evaluations.ts'
import { appOfTests } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'

const app = appOfTests({ TUNERY_STORE_COMPLETIONS: '30' })
let headers: Record<string, string>
before(async () => {
  await app.started
  headers = { authorization: `Bearer ${app.key}`, 'content-type': 'application/json' }
})

const body = (text: string, more: object = {}) => ({
  model: tiny,
  messages: [{ role: 'user', content: text }],
  max_tokens: 200,
  stop: ['e'],
  store: true,
  ...more,
})
const ask = (text: string, more: object = {}) => app.api('POST', '/chat/completions', body(text, more))
const list = async (query = '') => (await app.api('GET', `/chat/completions${query}`)).body

test('an answer is kept where the request says so, with its messages and metadata', async () => {
  const kept = (await ask('keep me', { metadata: { team: 'paint' }, seed: 3 })).body
  await ask('not me', { store: false })
  await app.api('POST', '/chat/completions', { ...body('nor me'), store: undefined })
  const { data } = await list()
  assert.deepEqual(
    data.map(({ id }: { id: string }) => id),
    [kept.id],
  )
  const [stored] = data
  assert.deepEqual([stored.choices, stored.usage, stored.metadata], [kept.choices, kept.usage, { team: 'paint' }])
  assert.deepEqual([stored.model, stored.seed, stored.object], [tiny, 3, 'chat.completion'])
  const messages = (await app.api('GET', `/chat/completions/${kept.id}/messages`)).body.data
  assert.deepEqual(messages, [{ id: `${kept.id}-0`, role: 'user', content: 'keep me', content_parts: null }])
  assert.equal((await app.other.api('GET', `/chat/completions/${kept.id}`)).status, 404)
  assert.equal((await app.api('DELETE', `/chat/completions/${kept.id}`)).body.deleted, true)
})

test('metadata that cannot be kept is refused, as it would be in the way of every list', async () => {
  for (const metadata of [{ a: 1 }, 5, ['a'], { a: null }, { a: 'x'.repeat(513) }]) {
    const { status, body } = await ask('hi', { metadata })
    assert.deepEqual([status, body.error?.param], [400, 'metadata'], JSON.stringify(metadata))
  }
  assert.equal((await ask('hi', { metadata: 5, store: false })).status, 200, 'it is taken without effect there')
  const pairs = Array.from({ length: 1000 }, (_, index) => `metadata[${index}]=x`).join('&')
  assert.equal((await app.api('GET', `/chat/completions?${pairs}`)).status, 400)
})

test('a stream is kept as it was sent, and one that its client leaves is not', async () => {
  const response = await fetch(`${app.url}/chat/completions`, {
    method: 'POST',
    headers,
    body: JSON.stringify(body('stream me ü', { stream: true, metadata: { how: 'stream' } })),
  })
  const events = (await response.text()).split('\n\n').filter((part) => part.startsWith('data: '))
  assert.equal(events.at(-1), 'data: [DONE]')
  const chunks = events.slice(0, -1).map((event) => JSON.parse(event.slice(6)))
  const text = chunks.map(({ choices }) => choices[0].delta.content ?? '').join('')
  const [stored] = (await list('?metadata[how]=stream')).data
  assert.equal(stored.choices[0].message.content ?? '', text)
  assert.equal(stored.id, chunks[0].id)
  assert.ok(stored.usage.completion_tokens > 0, 'with usage, though the client asked for none')
  const leaving = new AbortController()
  // Eight long answers: one alone may have ended before a busy machine gets to the client's leaving.
  const long = { stream: true, stop: null, max_tokens: 1000, n: 8 }
  const left = await fetch(`${app.url}/chat/completions`, {
    method: 'POST',
    signal: leaving.signal,
    headers,
    body: JSON.stringify(body('leave', { ...long, metadata: { how: 'left' } })),
  })
  await left.body!.getReader().read()
  leaving.abort()
  await until('no request', async () => (await app.api('GET', '/user/profile')).body.usage.concurrent === 0)
  assert.deepEqual((await list('?metadata[how]=left')).data, [])
})

test('they are filtered, changed, and become a dataset and a run of an eval; what was cut is left out', async () => {
  for (const [index, team] of ['a', 'b', 'a', 'a'].entries())
    await ask(`question ${index}`, { metadata: { team, kind: 'learn' } })
  await ask('cut', { metadata: { kind: 'learn', team: 'a' }, max_tokens: 1, stop: null })
  const items = (await list('?metadata[team]=a&metadata[kind]=learn&limit=2&order=desc')).data
  assert.equal(items.length, 2)
  const next = await list(`?metadata[team]=a&metadata[kind]=learn&limit=2&order=desc&after=${items[1].id}`)
  assert.deepEqual([next.data.length, next.has_more], [2, false])
  const { id } = next.data[1]
  const updated = (await app.api('POST', `/chat/completions/${id}`, { metadata: { kind: 'learn', team: 'c' } })).body
  assert.deepEqual(updated.metadata, { kind: 'learn', team: 'c' })

  // The last answer that was not cut is one of a model that thinks.
  const last = await app.db
    .selectFrom('stored_completions')
    .selectAll()
    .where('id', '=', items[1].id)
    .executeTakeFirst()
  const response = JSON.parse(last!.response_json)
  response.choices[0].message.reasoning_content = 'Hm.'
  await app.db
    .updateTable('stored_completions')
    .set({ response_json: JSON.stringify(response) })
    .where('id', '=', items[1].id)
    .execute()

  const filter = { metadata: { kind: 'learn', team: 'a' } }
  const answer = await app.api('POST', '/datasets/from-completions', { filter, name: 'Learned' })
  assert.deepEqual(
    [answer.status, answer.body.name, answer.body.rows],
    [201, 'Learned', 2],
    JSON.stringify(answer.body),
  )
  await until('the dataset', async () => {
    return (await app.api('GET', `/datasets/${answer.body.id}`)).body.status !== 'preparing'
  })
  const file = await fetch(`${app.url}/files/${answer.body.id}/content`, { headers })
  const rows = (await file.text())
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line))
  assert.deepEqual(
    rows.map(({ messages }) => [messages[0].content, messages[1].role, messages[1].reasoning_content]),
    [
      ['question 3', 'assistant', 'Hm.'],
      ['question 2', 'assistant', undefined],
    ],
  )

  const data_source_config = { type: 'stored_completions', metadata: { kind: 'learn' } }
  const grader = { type: 'regex', name: 'no e', pattern: 'e', negate: true }
  const made_eval = (await app.api('POST', '/evals', { data_source_config, testing_criteria: [grader] })).body
  const run = async (more: object) => {
    const data_source = {
      type: 'completions',
      source: { type: 'stored_completions', metadata: { team: 'a' } },
      ...more,
    }
    const { status, body } = await app.api('POST', `/evals/${made_eval.id}/runs`, { data_source })
    assert.equal(status, 201, JSON.stringify(body))
    await evaluationEnded(app, body.id)
    return (await app.api('GET', `/evals/${made_eval.id}/runs/${body.id}`)).body
  }
  const defaults = await run({})
  assert.deepEqual([defaults.result_counts, defaults.model], [{ total: 2, passed: 2, failed: 0, errored: 0 }, null])
  const asked = await run({ model: tiny, sampling_params: { max_completion_tokens: 4 } })
  assert.deepEqual([asked.status, asked.result_counts.total, asked.result_counts.errored], ['completed', 2, 0])
})

test('a deleted answer is in no file of the database', async () => {
  const secret = 'xyzzy-7f3a-secret'
  const written = () =>
    readdirSync(app.dataDir, { withFileTypes: true })
      .filter((entry) => entry.isFile() && readFileSync(path.join(app.dataDir, entry.name)).includes(secret))
      .map(({ name }) => name)
  await ask(`${secret} ${'long '.repeat(20)}`, { metadata: { delete: 'me' } })
  await ask('short', { metadata: { delete: 'me' } })
  assert.notDeepEqual(written(), [])
  const { body } = await app.api('POST', '/chat/completions/delete', { filter: { metadata: { delete: 'me' } } })
  assert.equal(body.deleted, 2)
  await until('no file with it', async () => {
    // A reader in the middle of the log makes it wait for the next time.
    await app.services.storedCompletions.emptyWal()
    return written().length === 0
  })
})

test('answers are deleted when their time is over', async () => {
  await ask('old')
  const { expires_at } = (await list('?limit=1&order=desc')).data[0]
  await app.services.storedCompletions.removeExpired(expires_at * 1000 + 2000)
  assert.deepEqual((await list()).data, [])
})
