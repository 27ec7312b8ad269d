// A server that serves a model for us turns hostile, or hangs: against the real service in its own process, with the
// official client.
import assert from 'node:assert/strict'
import type http from 'node:http'
import { after, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import OpenAI from 'openai'
import { client, until } from '../support/client.ts'
import { evaluationEnded, same, uploadItems } from '../support/evaluations.ts'
import { dataFolder } from '../support/server.ts'
import { tiny } from '../support/tiny.ts'
import { type Handler, json, startFakeUpstream } from '../support/upstream.ts'

let handle: Handler = (_path, _body, response) => json(response, 200, answer('yes'))
const upstream = await startFakeUpstream((...call) => handle(...call))
const entry = { url: upstream.url, kind: 'openai' }
const folder = dataFolder('attack-upstreams', {
  TUNERY_UPSTREAMS: JSON.stringify([
    { ...entry, model: 'far/hostile' },
    { ...entry, model: 'far/narrow', max_concurrent: 1 },
    { ...entry, model: 'far/stalls', first_byte_seconds: 1, between_bytes_seconds: 1 },
    { ...entry, model: 'far/hangs', first_byte_seconds: 1, between_bytes_seconds: 1 },
    { ...entry, model: 'far/slow', first_byte_seconds: 3600 },
  ]),
})
let server = await folder.start()
after(() => {
  folder.remove()
  upstream.stop()
})
const operator = () => client(server.url, folder.tunery('keys', 'create', '--name', 'ops', '--scopes', 'operator').key!)
async function account(name: string) {
  const { body } = await operator().api('POST', '/operator/accounts', { name, tier: 'enterprise', owner: { name } })
  return { key: body.key as string, ...client(server.url, body.key) }
}

const messages = [{ role: 'user' as const, content: 'Say something.' }]
const answer = (
  content: string,
  usage: object | null = { prompt_tokens: 3, completion_tokens: 1, total_tokens: 4 },
) => ({
  choices: [{ index: 0, message: { role: 'assistant', content }, finish_reason: 'stop' }],
  ...(usage && { usage }),
})
const event = (content: string, fields: object = {}) =>
  `data: ${JSON.stringify({ choices: [{ index: 0, delta: { content }, ...fields }] })}\n\n`
const chat = ({ api }: ReturnType<typeof client>, model: string, fields: object = {}) =>
  api('POST', '/chat/completions', { model, messages, max_tokens: 8, ...fields })

test('usage that no request can have reaches no report, before or after a restart', async () => {
  const mine = await account('poisoned')
  for (const tokens of [Number.MAX_SAFE_INTEGER, 2 ** 63, -1, 0.5, '12', null, [], { a: 1 }]) {
    handle = (_path, _body, response) =>
      json(response, 200, answer('yes', { prompt_tokens: tokens, completion_tokens: tokens, total_tokens: tokens }))
    assert.equal((await chat(mine, 'far/hostile')).status, 200)
  }
  for (const again of [false, true]) {
    if (again) {
      await server.end('SIGTERM')
      server = await folder.start()
    }
    const reader = client(server.url, mine.key)
    const { status, body } = await reader.api('GET', '/usage')
    assert.deepEqual([status, body.total?.requests], [200, 8])
    assert.ok(body.total.completion_tokens >= 8 && body.total.completion_tokens <= 64)
    assert.ok(body.total.prompt_tokens >= 24 && body.total.prompt_tokens <= 400)
    assert.equal((await reader.api('GET', '/usage/timeline?model=far/hostile')).status, 200)
    assert.equal((await operator().api('GET', '/operator/usage')).status, 200)
  }
})

test('no answer is free: whole, streamed, left early, of several choices, of texts and vectors', async () => {
  const mine = await account('free')
  const used = async () => (await mine.api('GET', '/usage')).body.total
  handle = (path, body, response) => {
    if (path.endsWith('/embeddings')) return json(response, 200, { data: [{ index: 0, embedding: [0.5] }] })
    const isChat = path.endsWith('/chat/completions')
    const pieces = ['some', ' words', ' of', ' it']
    if (!body.stream) {
      const choices = Array.from({ length: body.n ?? 1 }, (_, index) =>
        isChat
          ? { index, message: { content: pieces.join('') }, finish_reason: 'stop' }
          : { index, text: pieces.join(''), finish_reason: 'stop' },
      )
      return json(response, 200, { choices })
    }
    response.writeHead(200, { 'content-type': 'text/event-stream' })
    response.write(pieces.map((content) => event(content)).join(''))
    // One that leaves finds the answer unfinished.
    if (body.user !== 'leaves') response.end('data: [DONE]\n\n')
  }
  let before = await used()
  for (const [path, fields, least] of [
    ['/chat/completions', { messages }, [4, 4]],
    ['/chat/completions', { messages, n: 3 }, [4, 12]],
    ['/chat/completions', { messages, stream: true }, [4, 4]],
    ['/completions', { prompt: 'Say something.' }, [3, 4]],
    ['/embeddings', { input: 'Say something.' }, [3, 0]],
  ] as const) {
    const { status } = await mine.api('POST', path, { model: 'far/hostile', max_tokens: 8, ...fields })
    assert.equal(status, 200)
    const now = await used()
    assert.ok(now.prompt_tokens - before.prompt_tokens >= least[0], `${path} ${JSON.stringify(fields)}`)
    assert.ok(now.completion_tokens - before.completion_tokens >= least[1], `${path} ${JSON.stringify(fields)}`)
    before = now
  }
  const openai = new OpenAI({ apiKey: mine.key, baseURL: server.url, maxRetries: 0 })
  const streamed = await openai.chat.completions.create({
    model: 'far/hostile',
    messages,
    max_tokens: 8,
    stream: true,
    user: 'leaves',
  })
  for await (const _ of streamed) break
  await until('it to be metered', async () => (await used()).completion_tokens >= before.completion_tokens + 4)
})

test('what a hostile server sends, the official client can read or gets an error for', async () => {
  const mine = await account('hostile')
  const openai = new OpenAI({ apiKey: mine.key, baseURL: server.url, maxRetries: 0 })
  const done = 'data: [DONE]\n\n'
  const stop = event('', { finish_reason: 'stop' })
  const invalid = Buffer.concat([
    Buffer.from(event('a').slice(0, -8)),
    Buffer.from([0xff, 0xfe]),
    Buffer.from('"}}]}\n\n'),
  ])
  const endless = (response: http.ServerResponse, piece: string) => {
    const more = () => {
      while (!response.destroyed && response.write(piece));
    }
    response.on('drain', more)
    more()
  }
  const streams: [string, string | Buffer | ((response: http.ServerResponse) => void), RegExp][] = [
    ['a page', '<html>', /^error 502/],
    ['half a line', `${event('a')}data: {"choices":[{"del\n\n${done}`, /^a error/],
    ['no UTF-8', Buffer.concat([event('a'), invalid, stop, done].map((part) => Buffer.from(part))), /^a/],
    ['two ends', event('a') + stop + stop + event('more') + done + event('more') + done, /^a$/],
    ['a length that is not kept to', event('word ').repeat(10_000), /^(word ){8}$/],
    ['a single event without an end', `data: ${'x'.repeat(8e6)}`, /^error 502/],
    ['events without an end', (response) => endless(response, event('', { delta: {} }).repeat(50)), /error/],
    [
      'comments after the end',
      (response) => {
        response.write(event('a') + stop + done)
        endless(response, ': x\n')
      },
      /^a$/,
    ],
    ['silence', (response) => void response.write(event('a')), /^a error/],
    ['silence before it begins', (response) => void response.write(': x\n\n'), /^error 504/],
  ]
  for (const [name, sent, expected] of streams) {
    handle = (_path, _body, response) => {
      response.writeHead(200, { 'content-type': name === 'a page' ? 'text/html' : 'text/event-stream' })
      if (typeof sent === 'function') sent(response)
      else response.end(sent)
    }
    const model = name === 'silence' ? 'far/stalls' : name.startsWith('silence') ? 'far/hangs' : 'far/hostile'
    let text = ''
    try {
      const request = { model, messages, max_tokens: 8, stream: true as const }
      for await (const { choices } of await openai.chat.completions.create(request))
        text += choices[0]?.delta.content ?? ''
    } catch (error) {
      assert.ok(error instanceof OpenAI.APIError, String(error))
      text += `${text ? ' ' : ''}error ${error.status ?? ''}`
    }
    assert.match(text, expected, name)
  }
  handle = (_path, _body, response) => void response.writeHead(302, { location: 'http://169.254.169.254/' }).end()
  assert.equal((await chat(mine, 'far/hostile')).status, 502)
})

test('another account waits for one answer of a busy server, not for all that wait before it', async () => {
  const [many, one] = [await account('many'), await account('one')]
  const answer_ms = 500
  handle = async (_path, _body, response) => {
    await sleep(answer_ms)
    json(response, 200, answer('yes'))
  }
  const all = Array.from({ length: 30 }, () => chat(many, 'far/narrow'))
  await Promise.race(all)
  const started = performance.now()
  assert.equal((await chat(one, 'far/narrow')).status, 200)
  const waited_ms = performance.now() - started
  console.log(`another account's answer took ${(waited_ms / 1000).toFixed(2)} s behind 29 requests of 0.5 s`)
  assert.ok(waited_ms < 5 * answer_ms, `${waited_ms} ms`)
  await Promise.all(all)
})

test('fifty evaluations on a server that hangs delay nobody else’s', async () => {
  const [hangs, other] = [await account('hangs'), await account('other')]
  let asked = 0
  handle = () => void asked++
  const items = [{ messages, reference: 'yes' }]
  const shared = { graders: [same], sampling: { max_tokens: 4 } }
  const rows = await uploadItems(hangs, items)
  for (let count = 0; count < 50; count++) {
    const { status } = await hangs.api('POST', '/evaluations', { ...shared, model: 'far/slow', dataset: rows })
    assert.equal(status, 201)
  }
  await until('the server to be asked', () => asked > 0)
  const dataset = await uploadItems(other, items)
  const started = performance.now()
  const created = await other.api('POST', '/evaluations', { ...shared, model: tiny, dataset })
  assert.equal(created.status, 201, JSON.stringify(created.body))
  assert.equal((await evaluationEnded(other, created.body.id)).status, 'completed')
  const took_s = (performance.now() - started) / 1000
  console.log(`another account's evaluation took ${took_s.toFixed(1)} s behind 50 that hang`)
  assert.ok(took_s < 60)
})
