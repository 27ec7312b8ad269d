// Upstreams that are not our engine: their settings, errors, streams and adapters.
import assert from 'node:assert/strict'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import OpenAI from 'openai'
import { ConfigError } from '../../server/config.ts'
import { readUpstreams } from '../../server/features/serving/upstreams/settings.ts'
import { colourRows, until } from '../support/client.ts'
import { full } from '../support/full.ts'
import { startApp, type TestApp } from '../support/service.ts'
import { stream } from '../support/streams.ts'
import { tiny } from '../support/tiny.ts'
import { type FakeUpstream, type Handler, json, startFakeUpstream } from '../support/upstream.ts'

let app: TestApp
let plain: FakeUpstream
let vllm: FakeUpstream
let handle: Handler
let handleVllm: Handler
before(async () => {
  plain = await startFakeUpstream((...call) => handle(...call))
  vllm = await startFakeUpstream((...call) => handleVllm(...call))
  app = await startApp({
    TUNERY_UPSTREAMS: JSON.stringify([
      { model: 'far/plain', url: plain.url, kind: 'openai', api_key: 'secret', upstream_model: 'Plain' },
      { model: tiny, url: vllm.url, kind: 'vllm', adapters: true, adapter_root: '/shared/models' },
    ]),
  })
})
after(async () => {
  await app.stop()
  plain.stop()
  vllm.stop()
})

const messages = [{ role: 'user', content: 'Say something.' }]
const chat = (fields: object = {}) => app.api('POST', '/chat/completions', { model: 'far/plain', messages, ...fields })
const answer = (model: string, content = 'yes') => ({
  id: 'chatcmpl-1',
  object: 'chat.completion',
  created: 1,
  model,
  choices: [{ index: 0, message: { role: 'assistant', content }, finish_reason: 'stop' }],
  usage: { prompt_tokens: 3, completion_tokens: 1, total_tokens: 4 },
})
const chunk = (content: string) =>
  `data: ${JSON.stringify({
    id: 'c',
    object: 'chat.completion.chunk',
    created: 1,
    model: 'Plain',
    choices: [{ index: 0, delta: { content }, finish_reason: null }],
  })}\n\n`

test('an invalid setting is refused with the entry and the reason', () => {
  const good = { model: 'a/b', url: 'http://127.0.0.1:1', kind: 'vllm' }
  const read = (entries: unknown, env = {}) =>
    readUpstreams(typeof entries === 'string' ? entries : JSON.stringify(entries), env)
  for (const [entries, says] of [
    ['[{', /not valid JSON/],
    ['/no/such/file.json', /names the file \/no\/such\/file\.json, which does not exist/],
    [[{ ...good, kind: 'tgi' }], /entry 0, 'kind'/],
    [[good, { ...good, url: 'ftp://x' }], /entry 1, 'url'.*http/],
    [[{ ...good, colour: 1 }], /colour/],
    [[{ ...good, kind: 'openai', adapters: true }], /adapters.*vllm/],
    [[{ ...good, api_key_env: 'NOT_SET' }], /NOT_SET.*not set/],
    [[{ ...good, max_concurrent: 0 }], /max_concurrent/],
  ] as const)
    assert.throws(
      () => read(entries),
      (error: Error) => error instanceof ConfigError && says.test(error.message),
      String(says),
    )
  for (const url of ['http://127.0.0.1:1', 'http://127.0.0.1:1/', 'http://127.0.0.1:1/v1', 'http://127.0.0.1:1/v1/'])
    assert.equal(read([{ ...good, url }])[0]!.url.href, 'http://127.0.0.1:1/v1')
  assert.equal(read([{ ...good, api_key_env: 'K' }], { K: 'k' })[0]!.api_key, 'k')
  const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-upstreams-'))
  const file = path.join(folder, 'upstreams.json')
  writeFileSync(file, JSON.stringify([good]))
  assert.equal(read(file)[0]!.model, 'a/b')
  rmSync(folder, { recursive: true })
})

test('an upstream gets the API key, this service’s defaults, no null fields and no client headers', async () => {
  let seen: Record<string, unknown> = {}
  let headers: Record<string, unknown> = {}
  handle = (_path, body, response, request) => {
    seen = body
    headers = request.headers
    json(response, 200, answer('Plain'))
  }
  const settings = {
    tools: null,
    messages: [{ role: 'developer', content: 'Be brief.' }, ...messages],
    max_completion_tokens: 7,
    user: 'me',
  }
  const { body } = await app.api(
    'POST',
    '/chat/completions',
    { model: 'far/plain', ...settings },
    { 'x-client': 'mine' },
  )
  assert.equal(body.model, 'far/plain')
  assert.deepEqual(seen, {
    model: 'Plain',
    messages: [{ role: 'system', content: 'Be brief.' }, ...messages],
    temperature: 0.7,
    top_p: 0.9,
    max_tokens: 7,
    user: 'me',
  })
  assert.equal(headers.authorization, 'Bearer secret')
  assert.equal(headers['x-client'], undefined)
})

test('upstream errors get our shape: those about the request stay 400, others are the server’s', async () => {
  for (const [status, sent, code, says] of [
    [
      400,
      { object: 'error', message: 'bad thing', type: 'BadRequestError', code: 400 },
      'invalid_request',
      /bad thing/,
    ],
    [422, { detail: [{ msg: 'field required' }] }, 'invalid_request', /field required/],
    [
      400,
      { error: { message: 'This model’s maximum context length is 9 tokens', code: 400 } },
      'context_length_exceeded',
      /9 tokens/,
    ],
    [404, { error: { message: 'The model `x` does not exist.' } }, 'upstream_failed', /does not exist/],
    [401, { error: 'no' }, 'upstream_failed', /TUNERY_UPSTREAMS/],
    [500, 'Internal Server Error', 'upstream_failed', /The server of this model failed/],
    [503, { error: { message: 'Loading model' } }, 'engine_unavailable', /Loading model/],
  ] as const) {
    handle = (_path, _body, response) => json(response, status, sent)
    const { body } = await chat({ max_tokens: 5 })
    assert.equal(body.error.code, code, JSON.stringify(sent))
    assert.match(body.error.message, says)
    assert.equal(typeof body.error.type, 'string')
  }
})

test('if the default length does not fit the context, the request is retried without one', async () => {
  handle = (_path, body, response) =>
    body.max_tokens
      ? json(response, 400, { error: { message: "'max_tokens' is too large: the maximum context length is 20" } })
      : json(response, 200, answer('Plain'))
  assert.equal((await chat()).status, 200)
  assert.equal((await chat({ max_tokens: 100 })).body.error.code, 'context_length_exceeded')
})

test('a stream that breaks or reports an error ends with an error event that the official client raises', async () => {
  const client = new OpenAI({ apiKey: app.key, baseURL: app.url, maxRetries: 0 })
  const endings: [string, Handler][] = [
    ['cut off', (_path, _body, response) => void response.write(chunk('a'), () => response.destroy())],
    ['ended without [DONE]', (_path, _body, response) => void response.end(chunk('a'))],
    [
      'vLLM’s older shape',
      (_path, _body, response) =>
        void response.end(`${chunk('a')}data: {"object":"error","message":"died"}\n\ndata: [DONE]\n\n`),
    ],
    [
      'a newer one',
      (_path, _body, response) =>
        void response.end(`${chunk('a')}data: {"error":{"message":"died","code":500}}\n\ndata: [DONE]\n\n`),
    ],
  ]
  for (const [name, ending] of endings) {
    handle = (route, body, response, request, text) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' })
      return ending(route, body, response, request, text)
    }
    const request = { model: 'far/plain', messages: [{ role: 'user' as const, content: 'x' }], stream: true as const }
    let text = ''
    await assert.rejects(async () => {
      for await (const part of await client.chat.completions.create(request))
        text += part.choices[0]?.delta.content ?? ''
    }, /broke/)
    assert.equal(text, 'a', name)
    const raw = await stream(`${app.url}/chat/completions`, app.key, request).result
    assert.ok(!raw.text.includes('[DONE]'), name)
  }
})

test('events split at any byte and CRLF line ends are read correctly and get the client’s model name', async () => {
  const sent = `: hello\r\n\r\n${chunk('ä"model":"Plain"').replaceAll('\n', '\r\n')}data: [DONE]\r\n\r\n`
  const bytes = Buffer.from(sent)
  for (let cut = 1; cut < bytes.length; cut += 7) {
    handle = (_path, _body, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' })
      response.write(bytes.subarray(0, cut), () => setImmediate(() => response.end(bytes.subarray(cut))))
    }
    const { events, done } = await stream(`${app.url}/chat/completions`, app.key, {
      model: 'far/plain',
      messages,
      stream: true,
    }).result
    assert.ok(done)
    assert.deepEqual(
      events.map(({ model, choices }) => [model, choices[0].delta.content]),
      [['far/plain', 'ä"model":"Plain"']],
    )
  }
})

test('an aborted vLLM stream is metered up to the disconnect, from usage that the client does not see', async () => {
  const piece = (completion_tokens: number) => {
    const usage = { prompt_tokens: 9, total_tokens: 9 + completion_tokens, completion_tokens }
    return chunk('a')
      .replace('Plain', tiny)
      .replace(/}\n\n$/, `,"usage":${JSON.stringify(usage)}}\n\n`)
  }
  let stream_options: unknown
  handleVllm = (_path, body, response) => {
    stream_options = body.stream_options
    response.writeHead(200, { 'content-type': 'text/event-stream' }).write(piece(2) + piece(4))
  }
  const reader = stream(`${app.url}/chat/completions`, app.key, { model: tiny, messages, stream: true })
  await reader.untilBytes(1)
  reader.hangUp()
  const { text, headers, events } = await reader.result
  assert.deepEqual(stream_options, { include_usage: true, continuous_usage_stats: true })
  assert.equal(events.length, 2)
  assert.ok(!text.includes('usage'))
  const { usage } = app.services
  const row = await until('it to be metered', async () => {
    await usage.fold()
    return usage.find(app.owner.account_id, String(headers['x-request-id']))
  })
  assert.deepEqual([row.finish, row.prompt_tokens, row.completion_tokens], ['client_left', 9, 4])
})

test('a client that reads nothing pauses its upstream instead of filling memory', async () => {
  let sent = 0
  let full = false
  const piece = chunk('x'.repeat(60_000))
  handle = (_path, _body, response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream' })
    const more = () => {
      while (!response.destroyed && sent < 300e6) {
        sent += piece.length
        full = !response.write(piece)
        if (full) return
      }
    }
    response.on('drain', more)
    more()
  }
  const reader = stream(
    `${app.url}/chat/completions`,
    app.key,
    { model: 'far/plain', messages, stream: true },
    { read: false },
  )
  let before = -1
  await until('the upstream to be paused', async () => {
    const still = full && sent === before
    before = sent
    await new Promise((resolve) => setTimeout(resolve, 300))
    return still && sent === before
  })
  assert.ok(sent < 50e6, `${sent} bytes were read from the upstream`)
  reader.hangUp()
})

test(
  'an adapter is loaded once, reloaded if the upstream lost it, and refused if no server can load it',
  full,
  async () => {
    const loads: unknown[] = []
    const loaded = new Set<string>()
    let requests = 0
    handleVllm = (route, body, response) => {
      if (route === '/v1/load_lora_adapter') {
        loads.push(body)
        loaded.add(body.lora_name)
        return void response.writeHead(200).end('Success')
      }
      if (route === '/v1/unload_lora_adapter') {
        loaded.delete(body.lora_name)
        return void response.writeHead(200).end('Success')
      }
      requests++
      if (body.model !== tiny && !loaded.has(body.model))
        return json(response, 404, { error: { message: `The model \`${body.model}\` does not exist.` } })
      json(response, 200, answer(body.model))
    }
    const dataset = (await app.upload(colourRows(8))).body.id
    const job = (
      await app.api('POST', '/fine-tuning/jobs', {
        model_id: tiny,
        dataset_id: dataset,
        config: { training_config: { epochs: 1 } },
      })
    ).body.id
    const { model } = await app.untilEnded(job)
    assert.equal((await app.api('POST', '/deployments', { model, name: 'tuned' })).status, 201)
    assert.deepEqual(loads, [{ lora_name: model, lora_path: `/shared/models/${model}/adapter` }])
    const ask = () => app.api('POST', '/chat/completions', { model: 'tuned', messages })
    for (let round = 0; round < 2; round++) {
      const { body, status } = await ask()
      assert.equal(status, 200, JSON.stringify(body))
      assert.equal(body.model, 'tuned')
    }
    assert.deepEqual([loads.length, requests], [1, 2])
    loaded.clear()
    assert.equal((await ask()).status, 200)
    assert.deepEqual([loads.length, requests], [2, 4])

    const settings = {
      TUNERY_DATA_DIR: app.dataDir,
      TUNERY_UPSTREAMS: JSON.stringify([{ model: tiny, url: vllm.url, kind: 'vllm' }]),
    }
    const without = await startApp(settings, { open: app.openDatabase })
    const accounts = await without.services.accounts.createKey('same', 'full', app.owner.user_id)
    const refused = await fetch(`${without.url}/deployments`, {
      method: 'POST',
      headers: { authorization: `Bearer ${accounts.key}`, 'content-type': 'application/json' },
      body: JSON.stringify({ model, name: 'other' }),
    })
    const { error } = (await refused.json()) as { error: { code: string; message: string } }
    assert.equal(error.code, 'model_not_callable')
    assert.match(error.message, /cannot load adapters/)
    await without.stop()

    await app.api('DELETE', '/deployments/tuned')
    assert.equal((await app.api('DELETE', `/fine-tuning/models/${model}`)).status, 200)
    await until('a deleted model to leave the server', () => loaded.size === 0)
  },
)
