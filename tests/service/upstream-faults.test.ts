// Upstreams that hang, stall, redirect or report nonsense: whom they delay, what a client gets, and what is metered.
import assert from 'node:assert/strict'
import type http from 'node:http'
import { after, before, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { until } from '../support/client.ts'
import { evaluationEnded, same, uploadItems } from '../support/evaluations.ts'
import { startApp, type TestApp } from '../support/service.ts'
import { stream } from '../support/streams.ts'
import { type FakeUpstream, type Handler, json, startFakeUpstream } from '../support/upstream.ts'

let app: TestApp
let good: FakeUpstream
let bad: FakeUpstream
let answerGood: Handler
let answerBad: Handler
before(async () => {
  good = await startFakeUpstream((...call) => answerGood(...call))
  bad = await startFakeUpstream((...call) => answerBad(...call))
  const limits = { kind: 'openai', first_byte_seconds: 0.3, between_bytes_seconds: 0.3 }
  app = await startApp({
    TUNERY_UPSTREAMS: JSON.stringify([
      { ...limits, model: 'far/alone', url: bad.url },
      { ...limits, model: 'far/both', url: bad.url },
      { ...limits, model: 'far/both', url: good.url },
      { ...limits, model: 'far/waits', url: bad.url, first_byte_seconds: 60 },
      { kind: 'openai', model: 'far/good', url: good.url },
      { kind: 'openai', model: 'far/narrow', url: good.url, max_concurrent: 2 },
    ]),
  })
})
after(async () => {
  await app.stop()
  good.stop()
  bad.stop()
})

const messages = [{ role: 'user', content: 'Say something.' }]
const request = (model: string, fields: object = {}) => ({ model, messages, max_tokens: 8, ...fields })
const chat = (model: string, fields: object = {}, { api }: Pick<TestApp, 'api'> = app) =>
  api('POST', '/chat/completions', request(model, fields))
const streamed = (model: string) => stream(`${app.url}/chat/completions`, app.key, request(model, { stream: true }))
const answer = (fields: object = {}) => ({
  choices: [{ index: 0, message: { role: 'assistant', content: 'yes' }, finish_reason: 'stop' }],
  usage: { prompt_tokens: 3, completion_tokens: 1, total_tokens: 4 },
  ...fields,
})
const event = (content: string) => `data: ${JSON.stringify({ choices: [{ index: 0, delta: { content } }] })}\n\n`
const sse = (response: http.ServerResponse, text: string) =>
  response.writeHead(200, { 'content-type': 'text/event-stream' }).write(text)
const metered = (id: string) =>
  until('it to be metered', async () => {
    await app.services.usage.fold()
    return app.services.usage.find(app.owner.account_id, id)
  })

test('an upstream that takes requests and answers none gets none, until it has answered one on trial', async () => {
  let asked = 0
  let trials = 0
  const count = (body: { messages: object[] }) => {
    if (JSON.stringify(body.messages) === JSON.stringify(messages)) asked++
    else trials++
  }
  answerBad = (_path, body) => count(body)
  answerGood = (_path, _body, response) => json(response, 200, answer())
  const first = await chat('far/alone')
  assert.deepEqual([first.status, first.body.error.code, asked], [504, 'upstream_timeout', 1])
  const refused = await chat('far/alone')
  assert.deepEqual([refused.status, refused.body.error.code, asked], [503, 'engine_unavailable', 1])
  assert.ok(Number(refused.headers.get('retry-after')) >= 1)
  for (let round = 0; round < 6; round++) assert.equal((await chat('far/both')).status, 200)
  assert.equal(asked, 2, 'another server of the model answers')

  await until('a trial of each', () => trials >= 2)
  assert.equal((await chat('far/alone')).status, 503, 'what answers probes alone stays out')
  assert.equal(asked, 2)
  answerBad = (_path, body, response) => {
    count(body)
    json(response, 200, answer())
  }
  await until('it to be up again', async () => (await chat('far/alone')).status === 200)
  const before = asked
  await until('it to get requests beside the other one', async () => {
    assert.equal((await chat('far/both')).status, 200)
    return asked > before
  })
})

test('a stream that falls silent ends with an error; comments do not keep it alive', async () => {
  answerBad = (_path, _body, response) => {
    sse(response, event('a'))
    const comments = setInterval(() => response.write(': ping\n\n'), 50)
    response.on('close', () => clearInterval(comments))
  }
  const { events, done } = await streamed('far/alone').result
  assert.deepEqual(
    [events[0].choices[0].delta.content, events.at(-1).error.code, done],
    ['a', 'upstream_timeout', false],
  )
  answerBad = (_path, _body, response) => json(response, 200, answer())
  await until('it to be up again', async () => (await chat('far/alone')).status === 200)
})

test('redirects, pages and refusals are errors of the server, with its Retry-After', async () => {
  let followed = 0
  for (const [status, headers, body, expected] of [
    [307, { location: `${good.url}/v1/other` }, '', [502, null]],
    [301, { location: 'http://169.254.169.254/' }, '', [502, null]],
    [404, { 'content-type': 'text/html' }, '<html>', [502, null]],
    [400, { 'content-type': 'text/html' }, '<html>nginx', [502, null]],
    [429, { 'retry-after': '17' }, '{"error":{"message":"busy"}}', [503, '17']],
    [503, { 'retry-after': '99999' }, '', [503, '3600']],
    [504, { 'retry-after': '5' }, '', [504, '5']],
  ] as const) {
    answerGood = (path, _body, response) => {
      if (path.endsWith('/other')) followed++
      response.writeHead(status, headers).end(body)
    }
    for (const stream of [false, true]) {
      const got = await chat('far/good', { stream })
      assert.deepEqual([got.status, got.headers.get('retry-after')], expected, `${status} ${stream}`)
      assert.doesNotMatch(JSON.stringify(got.body), /html|169/)
    }
  }
  assert.equal(followed, 0)
})

test('what an upstream does not report, or cannot have used, is counted here, and answered as usage', async () => {
  const impossible = { prompt_tokens: Number.MAX_SAFE_INTEGER, completion_tokens: -7 }
  answerGood = (path, _body, response) =>
    json(
      response,
      200,
      path.endsWith('/embeddings')
        ? { data: [{ index: 0, embedding: [1] }] }
        : answer({ usage: path.endsWith('/chat/completions') ? impossible : undefined, choices: choicesFor(path) }),
    )
  const choicesFor = (path: string) =>
    path.endsWith('/chat/completions')
      ? answer().choices
      : [0, 1].map((index) => ({ index, text: 'some words', finish_reason: 'stop' }))
  const prompt = 'twelve bytes'
  for (const [path, fields, expected] of [
    ['/chat/completions', { messages }, [8, 1]],
    ['/completions', { prompt, n: 2 }, [3, 6]],
    ['/embeddings', { input: prompt }, [3, 0]],
  ] as const) {
    const { status, body, headers } = await app.api('POST', path, { model: 'far/good', max_tokens: 8, ...fields })
    assert.equal(status, 200, JSON.stringify(body))
    const row = await metered(headers.get('x-request-id')!)
    assert.deepEqual([row.prompt_tokens, row.completion_tokens], expected, path)
    assert.deepEqual([body.usage.prompt_tokens, body.usage.completion_tokens ?? 0], expected, path)
  }
  for (const route of ['/usage', '/usage/timeline?model=far/good'])
    assert.equal((await app.api('GET', route)).status, 200, route)
})

test('a client that leaves is metered: with what it was sent, or with the prompt if it was sent nothing', async () => {
  answerBad = (_path, body, response) => {
    if (body.stream) sse(response, event('some ') + event('words'))
  }
  const reader = stream(`${app.url}/chat/completions`, app.key, request('far/waits', { stream: true }))
  await reader.untilBytes(1)
  reader.hangUp()
  const row = await metered(String((await reader.result).headers['x-request-id']))
  assert.deepEqual([row.finish, row.prompt_tokens, row.completion_tokens], ['client_left', 8, 3])

  const before = await sum('client_left')
  const leaving = new AbortController()
  let asked = false
  answerBad = () => {
    asked = true
  }
  const headers = { authorization: `Bearer ${app.key}`, 'content-type': 'application/json' }
  const body = JSON.stringify(request('far/waits'))
  const whole = fetch(`${app.url}/chat/completions`, { method: 'POST', headers, body, signal: leaving.signal })
  whole.catch(() => {})
  await until('it to be sent', () => asked)
  leaving.abort()
  await until('it to be metered', async () => (await sum('client_left')) === before + 8)
})

async function sum(finish: 'client_left'): Promise<number> {
  await app.services.usage.fold()
  const rows = await app.db.selectFrom('usage').select('prompt_tokens').where('finish', '=', finish).execute()
  return rows.reduce((total, { prompt_tokens }) => total + prompt_tokens, 0)
}

test('slots of an upstream go round the accounts: who asks once does not wait for all of another', async () => {
  const each_ms = 150
  answerGood = async (_path, _body, response) => {
    await sleep(each_ms)
    json(response, 200, answer())
  }
  let left = 30
  const many = Array.from({ length: left }, () => chat('far/narrow').finally(() => left--))
  await until('some to wait', () => left < 28)
  const { status } = await chat('far/narrow', {}, app.other)
  const ahead = 28 - left
  assert.equal(status, 200)
  assert.ok(ahead <= 8, `${ahead} of another account's requests were answered before`)
  const statuses = await Promise.all(many.map(async (one) => (await one).status))
  assert.ok(statuses.every((one) => one === 200))
})

test('work on an upstream that hangs holds up no evaluation and no batch of others', async () => {
  const held: http.ServerResponse[] = []
  answerBad = (_path, _body, response) => void held.push(response)
  answerGood = (_path, _body, response) => json(response, 200, answer())
  const evaluate = async (model: string, who: Pick<TestApp, 'api'>) => {
    const dataset = await uploadItems(who, [{ messages, reference: 'yes' }])
    const created = await who.api('POST', '/evaluations', { model, dataset, graders: [same] })
    assert.equal(created.status, 201, JSON.stringify(created.body))
    return created.body.id as string
  }
  const batch = async (model: string, who: Pick<TestApp, 'api'>) => {
    const line = { custom_id: 'a', method: 'POST', url: '/v1/chat/completions', body: request(model) }
    const form = new FormData()
    form.set('purpose', 'batch')
    form.set('file', new Blob([JSON.stringify(line)]), 'lines.jsonl')
    const input_file_id = (await who.api('POST', '/files', form)).body.id
    const fields = { endpoint: '/v1/chat/completions', completion_window: '24h', input_file_id }
    return (await who.api('POST', '/batches', fields)).body.id as string
  }
  const stuck = await Promise.all([1, 2, 3, 4].map(() => evaluate('far/waits', app)))
  const stuckBatches = await Promise.all([1, 2, 3].map(() => batch('far/waits', app)))
  await until('the server to be asked', () => held.length >= 4)
  const started = performance.now()
  const [theirs, batched] = await Promise.all([evaluate('far/good', app.other), batch('far/good', app.other)])
  assert.equal((await evaluationEnded(app.other, theirs)).status, 'completed')
  await until('the batch', async () => (await app.other.api('GET', `/batches/${batched}`)).body.status === 'completed')
  const took_ms = performance.now() - started
  assert.ok(took_ms < 10_000, `${took_ms} ms`)
  assert.ok(held.length <= 4, 'two evaluations and two batches of an account at once')
  for (const id of stuck) await app.api('POST', `/evaluations/${id}/cancel`)
  for (const id of stuckBatches) await app.api('POST', `/batches/${id}/cancel`)
})
