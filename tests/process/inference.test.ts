// The inference gateway with a real engine: batches, model lookup, response headers, deployments, revoked keys.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { BatchResponse } from '../../contract/chat.ts'
import { ModelCard } from '../../contract/inference.ts'
import { allowed } from '../support/allowed-time.ts'
import { until } from '../support/client.ts'
import { appOfTests } from '../support/service.ts'
import { stream } from '../support/streams.ts'
import { tiny } from '../support/tiny.ts'

const app = appOfTests()

const messages = [{ role: 'user', content: 'Say something.' }]
const chat = (body: object = {}) =>
  app.api('POST', '/chat/completions', { model: tiny, messages, max_tokens: 4, temperature: 0, ...body })

test('the first request loads the model, and its Server-Timing says how long that took', async () => {
  const status = async () => (await app.api('GET', `/models/${tiny}`)).body.status
  assert.equal(await status(), 'not_loaded')
  const first = await chat()
  assert.equal(first.status, 200, JSON.stringify(first.body))
  assert.equal(await status(), 'loaded')
  const load = (answer: typeof first) =>
    Number(/load;dur=([\d.]+), queue;dur=([\d.]+)/.exec(answer.headers.get('server-timing')!)![1])
  assert.ok(load(first) > 10, `the engine was started and the model loaded in ${load(first)} ms`)
  assert.ok(load(await chat()) < load(first) / 2)
  const streamed = await stream(`${app.url}/chat/completions`, app.key, {
    model: tiny,
    messages,
    max_tokens: 2,
    stream: true,
  }).result
  assert.match(String(streamed.headers['server-timing']), /load;dur=[\d.]+, queue;dur=[\d.]+/)
})

test('a model is found by its id, with the slash plain or escaped; unknown ids are 404', async () => {
  for (const id of [tiny, encodeURIComponent(tiny)]) {
    const { body, status } = await app.api('GET', `/models/${id}`)
    assert.equal(status, 200)
    assert.equal(ModelCard.parse(body).id, tiny)
  }
  const none = await app.api('GET', '/models/no/such')
  assert.equal(none.status, 404)
  assert.equal(none.body.error.code, 'model_not_found')
})

test('a card says what a model is for, whatever it is called', async () => {
  await app.api('POST', '/deployments', { name: 'embed-minilm', model: tiny })
  const { data } = (await app.api('GET', '/models')).body as { data: ModelCard[] }
  const categoryOf = (name: string) => data.find(({ id }) => id === name)!.category
  assert.deepEqual([categoryOf(tiny), categoryOf('embed-minilm')], ['language', 'language'])
  const { models } = (await app.api('GET', '/hub/')).body as { models: { id: string; category: string }[] }
  for (const { id, category } of data) {
    const base = models.find((model) => model.id === id)
    if (base) assert.equal(category, base.category)
  }
  await app.api('DELETE', '/deployments/embed-minilm')
})

test('a batch is answered in order; an invalid request gets its own error and does not affect the others', async () => {
  const { status, body } = await app.api('POST', '/chat/completions/batch', {
    model: tiny,
    temperature: 0,
    max_tokens: 3,
    requests: [
      { messages },
      { messages: [] },
      { messages, max_tokens: 5 },
      { messages, stream: true },
      { messages, model: 'nobody' },
      { messages, temperature: 9 },
      { messages: [{ role: 'user', content: 'Other.' }] },
    ],
  })
  assert.equal(status, 200, JSON.stringify(body))
  BatchResponse.parse(body)
  const [first, empty, longer, streamed, unknown, hot, other] = body.responses
  assert.equal(first.choices[0].message.content, (await chat({ max_tokens: 3 })).body.choices[0].message.content)
  assert.equal(first.usage.completion_tokens, 3)
  assert.equal(longer.usage.completion_tokens, 5)
  assert.equal(empty.error.code, 'invalid_request')
  assert.equal(empty.error.param, 'messages')
  assert.deepEqual([streamed.error.code, streamed.error.param], ['parameter_not_supported', 'stream'])
  assert.equal(unknown.error.code, 'model_not_found')
  assert.match(hot.error.message, /temperature/)
  const answers = [first, longer, other]
  for (const field of ['prompt_tokens', 'completion_tokens', 'total_tokens'] as const)
    assert.equal(
      body.usage[field],
      answers.reduce((sum, answer) => sum + answer.usage[field], 0),
    )
})

test('a batch whose requests all fail is still answered; a malformed batch is refused', async () => {
  const failed = await app.api('POST', '/chat/completions/batch', {
    model: 'nobody',
    requests: [{ messages }, { messages }],
  })
  assert.equal(failed.status, 200)
  assert.deepEqual(
    failed.body.responses.map((response: { error: { code: string } }) => response.error.code),
    ['model_not_found', 'model_not_found'],
  )
  assert.deepEqual(failed.body.usage.total_tokens, 0)
  for (const bad of [
    { requests: [] },
    { requests: Array(101).fill({ messages }) },
    { requests: [{ messages }], stream: true },
    {},
  ])
    assert.equal(
      (await app.api('POST', '/chat/completions/batch', { model: tiny, ...bad })).status,
      400,
      JSON.stringify(bad).slice(0, 60),
    )
})

test('a permanent error has x-should-retry: false', async () => {
  for (const answer of [await chat({ temperature: 9 }), await chat({ model: 'nobody' })])
    assert.equal(answer.headers.get('x-should-retry'), 'false')
  assert.equal((await chat()).headers.get('x-should-retry'), null)
})

test('creating or deleting a deployment takes effect on the next request', async () => {
  const named = () => chat({ model: 'mine' })
  assert.equal((await named()).status, 404)
  assert.equal((await app.api('POST', '/deployments', { model: tiny, name: 'mine' })).status, 201)
  for (let round = 0; round < 3; round++) assert.equal((await named()).body.model, 'mine')
  await app.api('DELETE', '/deployments/mine')
  assert.equal((await named()).status, 404)
})

test('a body with several model keys is served by the model that was authorized', async () => {
  await app.api('POST', '/deployments', { model: tiny, name: 'twice' })
  for (const text of [
    `{"model":"nobody","model":"twice","messages":${JSON.stringify(messages)},"max_tokens":1}`,
    `{"mod\\u0065l":"twice","metadata":{"model":"twice"},"messages":${JSON.stringify(messages)},"max_tokens":1}`,
    `{"metadata":{"model":"x"},"model":"twice","messages":${JSON.stringify(messages)},"max_tokens":1}`,
  ]) {
    const { status, body } = await app.api('POST', '/chat/completions', text)
    assert.equal(status, 200, JSON.stringify(body))
    assert.equal(body.model, 'twice')
  }
})

test('a key that another process revokes stops working within a second', async () => {
  const { openDatabase } = await import('../../server/platform/db/open.ts')
  const { key, id } = await app.services.accounts.createKey('short-lived', 'full', app.owner.user_id)
  const ask = async () => (await fetch(`${app.url}/models`, { headers: { authorization: `Bearer ${key}` } })).status
  assert.equal(await ask(), 200)
  const db = await openDatabase(app.dataDir)
  await db.deleteFrom('api_keys').where('id', '=', id).execute()
  await db.destroy()
  const revoked = performance.now()
  await until('the key to be refused', async () => (await ask()) === 401)
  assert.ok(performance.now() - revoked < allowed(1000))
})
