// What this service does not believe of, or pass on to, a server of another make.
import assert from 'node:assert/strict'
import http from 'node:http'
import type { AddressInfo } from 'node:net'
import { PassThrough } from 'node:stream'
import { after, before, test } from 'node:test'
import { relayStream } from '../../server/inference/gateway/relay.ts'
import { startApp, type TestApp } from '../support/service.ts'
import { stream } from '../support/streams.ts'
import { type Foreign, type Handler, json, startForeign } from '../support/upstream.ts'

let app: TestApp
let server: Foreign
let handle: Handler
before(async () => {
  server = await startForeign((...call) => handle(...call))
  const entry = { url: server.url, kind: 'vllm' }
  app = await startApp({
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

test('a 200 that is not what was asked for is a failure, and the name in an answer is always the client’s', async () => {
  const page = (_path: string, _body: unknown, response: http.ServerResponse) =>
    void response.writeHead(200, { 'content-type': 'text/html' }).end('<html>')
  for (const wrong of [
    page,
    (_path, _body, response) => json(response, 200, ['a']),
    (_path, _body, response) => json(response, 200, null),
  ] as Handler[]) {
    handle = wrong
    const { status, body } = await chat('far/plain')
    assert.deepEqual([status, body.error.code], [500, 'engine_failed'])
  }
  handle = page
  const streamed = await stream(`${app.url}/chat/completions`, app.key, { model: 'far/plain', messages, stream: true })
    .whole
  assert.match(streamed.text, /engine_failed/)
  handle = (_path, _body, response) => json(response, 200, answer('something else'))
  assert.equal((await chat('far/plain')).body.model, 'far/plain')
})

test('an answer without an end is given up', async () => {
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
  assert.deepEqual([status, body.error.code], [500, 'engine_failed'])
  assert.match(body.error.message, /64 MB/)
})

test('each account has a cache of its own in a vLLM, whatever salt its client sends; other servers are sent none', async () => {
  const salts: unknown[] = []
  handle = (_path, body, response) => {
    salts.push(body.cache_salt)
    json(response, 200, answer(body.model))
  }
  await chat('far/closed', { cache_salt: 'mine' })
  await chat('far/open')
  await chat('far/open', {}, app.other)
  await chat('far/plain', { cache_salt: 'mine' })
  assert.match(String(salts[0]), /^[0-9a-f]{64}$/)
  assert.equal(salts[1], salts[0])
  assert.match(String(salts[2]), /^[0-9a-f]{64}$/)
  assert.notEqual(salts[2], salts[0])
  assert.equal(salts[3], undefined)
})

test('a prompt is not taken as plain text by a server that would read control tokens in it', async () => {
  const { status, body } = await app.api('POST', '/completions', {
    model: 'far/plain',
    prompt: '<|im_end|>',
    parse_special: false,
  })
  assert.deepEqual([status, body.error.code, body.error.param], [400, 'parameter_not_supported', 'parse_special'])
})

test('a server fetches images for clients only where its operator says so', async () => {
  let asked = 0
  handle = (_path, body, response) => {
    asked++
    json(response, 200, answer(body.model))
  }
  const image = (url: string) => ({
    messages: [{ role: 'user', content: [{ type: 'image_url', image_url: { url } }] }],
  })
  for (const url of ['http://169.254.169.254/', 'file:///etc/passwd', ' data:,x']) {
    const { status, body } = await chat('far/closed', image(url))
    assert.deepEqual([status, body.error.code, body.error.param], [400, 'invalid_request', 'messages'])
  }
  assert.equal(asked, 0)
  assert.equal((await chat('far/closed', image('data:image/png;base64,AA=='))).status, 200)
  assert.equal((await chat('far/open', image('http://example.com/a.png'))).status, 200)
})

test('a client that stops to read for too long is ended, and its place comes back', async () => {
  const rest = new PassThrough()
  let released = 0
  const ends: string[] = []
  const relay = http.createServer((_request, response) => {
    const served = {
      headers: {},
      load_ms: 0,
      queue_ms: 0,
      content: { first: undefined, rest },
      rename: undefined,
      foreign: false,
      askedRunning: false,
    }
    const meter = { end: (how: string) => void ends.push(how), endLater: () => {} }
    const opening = { begin: () => response, fail: () => {} }
    void relayStream(
      { ...served, release: () => released++ } as never,
      opening,
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
    rest.write('data: {}\n\n')
  })
  response.pause()
  const closed = new Promise((resolve) => response.on('close', resolve).on('error', () => {}))
  const piece = `data: {"x":"${'x'.repeat(1 << 20)}"}\n\n`
  for (let count = 0; count < 64 && rest.write(piece); count++);
  rest.on('drain', () => rest.write(piece))
  await new Promise((resolve) => rest.once('close', resolve))
  assert.deepEqual([released, ends], [1, ['client_left']])
  response.resume()
  await closed
  relay.close()
})

test('while the service stops, whoever still asks is told so in the shape of every error', async () => {
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
