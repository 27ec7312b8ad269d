// What the service does not accept from upstreams, and does not pass on to them.
import assert from 'node:assert/strict'
import http from 'node:http'
import type { AddressInfo } from 'node:net'
import { PassThrough } from 'node:stream'
import { after, before, test } from 'node:test'
import { relayStream } from '../../server/features/inference/gateway/relay.ts'
import { dataUrl, disk } from '../support/pictures.ts'
import { startApp, type TestApp } from '../support/service.ts'
import { stream } from '../support/streams.ts'
import { type FakeUpstream, type Handler, json, startFakeUpstream } from '../support/upstream.ts'

let app: TestApp
let server: FakeUpstream
let handle: Handler
before(async () => {
  server = await startFakeUpstream((...call) => handle(...call))
  const entry = { url: server.url, kind: 'vllm' }
  app = await startApp({
    TUNERY_STORE_COMPLETIONS: '1',
    TUNERY_UPSTREAMS: JSON.stringify([
      { ...entry, model: 'far/closed' },
      { ...entry, model: 'far/open', fetch_images: true },
      { ...entry, model: 'far/plain', kind: 'openai' },
    ]),
  })
})
after(async () => {
  await app.stop()
  server.stop()
})

const answer = (model: string) => ({
  model,
  choices: [{ index: 0, message: { role: 'assistant', content: 'yes' }, finish_reason: 'stop' }],
  usage: { prompt_tokens: 3, completion_tokens: 1, total_tokens: 4 },
})
const messages = [{ role: 'user', content: 'x' }]
const chat = (model: string, fields: object = {}, as: { api: TestApp['api'] } = app) =>
  as.api('POST', '/chat/completions', { model, messages, ...fields })

test('a 200 with an unexpected body is an error, and responses always have the client’s model name', async () => {
  const page = (_path: string, _body: unknown, response: http.ServerResponse) =>
    void response.writeHead(200, { 'content-type': 'text/html' }).end('<html>')
  for (const wrong of [
    page,
    (_path, _body, response) => json(response, 200, ['a']),
    (_path, _body, response) => json(response, 200, null),
  ] as Handler[]) {
    handle = wrong
    const { status, body } = await chat('far/plain')
    assert.deepEqual([status, body.error.code], [502, 'upstream_failed'])
  }
  handle = page
  const streamed = await stream(`${app.url}/chat/completions`, app.key, { model: 'far/plain', messages, stream: true })
    .result
  assert.match(streamed.text, /upstream_failed/)
  handle = (_path, _body, response) => json(response, 200, answer('something else'))
  assert.equal((await chat('far/plain')).body.model, 'far/plain')
})

test('answers that an upstream gives one id are stored each under the id that its client was told', async () => {
  handle = (_path, { stream }, response) => {
    if (!stream) return json(response, 200, { ...answer('x'), id: 'chatcmpl-same' })
    const { choices, usage } = answer('x')
    const event = { id: 'chatcmpl-same', object: 'chat.completion.chunk', created: 1, model: 'x' }
    const events = [
      { ...event, choices: choices.map(({ message, ...choice }) => ({ ...choice, delta: message })) },
      { ...event, choices: [], usage },
    ]
    const text = events.map((event) => `data: ${JSON.stringify(event)}\n\n`).join('')
    response.writeHead(200, { 'content-type': 'text/event-stream' }).end(`${text}data: [DONE]\n\n`)
  }
  const asked = { model: 'far/plain', messages, store: true }
  const told = await Promise.all([1, 2, 3].map(async () => (await chat('far/plain', { store: true })).body.id))
  const streamed = await stream(`${app.url}/chat/completions`, app.key, { ...asked, stream: true }).result
  told.push(/"id":"([^"]+)"/.exec(streamed.text)?.[1])
  const { body } = await app.api('GET', '/chat/completions?limit=100')
  assert.deepEqual(body.data.map(({ id }: { id: string }) => id).sort(), [...told].sort())
  assert.equal(new Set(told).size, 4)
  for (const id of told) assert.equal((await app.api('GET', `/chat/completions/${id}`)).status, 200)
})

test('an endless response is cut off at its size limit', async () => {
  handle = (_path, _body, response) => {
    response.writeHead(200, { 'content-type': 'application/json' })
    const piece = Buffer.alloc(1 << 20, ' ')
    const more = () => {
      while (!response.destroyed && response.write(piece));
    }
    response.on('drain', more)
    more()
  }
  const { status, body } = await chat('far/plain')
  assert.deepEqual([status, body.error.code], [502, 'upstream_failed'])
  assert.match(body.error.message, /64 MB/)
})

test('vLLM gets one cache salt per account, whatever the client sends; other servers get none', async () => {
  const salts: unknown[] = []
  handle = (_path, body, response) => {
    salts.push(body.cache_salt)
    json(response, 200, answer(body.model))
  }
  await chat('far/closed', { cache_salt: 'mine' })
  await chat('far/open')
  await chat('far/open', {}, app.other)
  await chat('far/plain', { cache_salt: 'mine' })
  assert.match(String(salts[0]), /^[\w-]{43}$/)
  assert.equal(salts[1], salts[0])
  assert.match(String(salts[2]), /^[\w-]{43}$/)
  assert.notEqual(salts[2], salts[0])
  assert.equal(salts[3], undefined)
})

test('parse_special: false is refused for upstreams, which always read control tokens', async () => {
  const { status, body } = await app.api('POST', '/completions', {
    model: 'far/plain',
    prompt: '<|im_end|>',
    parse_special: false,
  })
  assert.deepEqual([status, body.error.code, body.error.param], [400, 'parameter_not_supported', 'parse_special'])
})

test('a suffix is refused for upstreams, some of which would ignore it', async () => {
  const request = { model: 'far/plain', prompt: 'a', suffix: 'z' }
  const { status, body } = await app.api('POST', '/completions', request)
  assert.deepEqual([status, body.error.code, body.error.param], [400, 'parameter_not_supported', 'suffix'])
})

test('upstreams get image URLs only if fetch_images is set', async () => {
  let requests = 0
  handle = (_path, body, response) => {
    requests++
    json(response, 200, answer(body.model))
  }
  const image = (url: string) => ({
    messages: [{ role: 'user', content: [{ type: 'image_url', image_url: { url } }] }],
  })
  for (const url of ['http://169.254.169.254/', 'file:///etc/passwd', ' data:,x']) {
    const { status, body } = await chat('far/closed', image(url))
    assert.deepEqual([status, body.error.code, body.error.param], [400, 'invalid_request', 'messages'])
  }
  assert.equal(requests, 0)
  assert.equal((await chat('far/closed', image(dataUrl(disk(8, 8, [1, 2, 3]))))).status, 200)
  assert.equal((await chat('far/open', image('http://example.com/a.png'))).status, 200)
})

test('a client that stops reading for too long is disconnected, and its slot is freed', async () => {
  const upstream = new PassThrough()
  let released = 0
  const ends: string[] = []
  const relay = http.createServer((_request, response) => {
    const poolResponse = { headers: {}, load_ms: 0, queue_ms: 0, content: { firstChunk: undefined, stream: upstream } }
    const meter = { end: (how: string) => void ends.push(how), endAborted: () => {}, firstToken: () => {} }
    const sseResponse = { start: () => response, fail: () => {} }
    void relayStream(
      { ...poolResponse, release: () => released++ } as never,
      sseResponse,
      meter,
      {},
      new AbortController().signal,
      200,
    )
  })
  await new Promise<void>((resolve) => relay.listen(0, '127.0.0.1', resolve))
  const request = http.get({ port: (relay.address() as AddressInfo).port, host: '127.0.0.1' })
  const response = await new Promise<http.IncomingMessage>((resolve) => {
    request.on('response', resolve)
    upstream.write('data: {}\n\n')
  })
  response.pause()
  const closed = new Promise((resolve) => response.on('close', resolve).on('error', () => {}))
  const piece = `data: {"x":"${'x'.repeat(1 << 20)}"}\n\n`
  for (let count = 0; count < 64 && upstream.write(piece); count++);
  upstream.on('drain', () => upstream.write(piece))
  await new Promise((resolve) => upstream.once('close', resolve))
  assert.deepEqual([released, ends], [1, ['client_left']])
  response.resume()
  await closed
  relay.close()
})

test('requests during shutdown get an error in the usual shape', async () => {
  const stopping = await startApp()
  try {
    stopping.services.beginStop()
    const { status, body } = await stopping.api('GET', '/models')
    assert.deepEqual([status, body.error.code, body.error.type], [503, 'shutting_down', 'server_error'])
    assert.equal((await fetch(`${stopping.address}/health/live`)).status, 200)
  } finally {
    await stopping.stop()
  }
})
