// HTTP API of the engine: response shapes, SSE framing, errors.
import assert from 'node:assert/strict'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, type TestContext, test } from 'node:test'
import { brotliCompressSync, gzipSync } from 'node:zlib'
import { ChatChunk, ChatResponse } from '../../../contract/chat.ts'
import { ModelList } from '../../../contract/inference.ts'
import { endless, tiny, tinyModelsDir } from '../../support/tiny.ts'
import { chat, type Engine, modelName, modelPath, readEvents, startEngine, textOf } from './engine-process.ts'

let engine: Engine
before(async () => {
  engine = await startEngine()
})
after(() => engine.stop())

const hello = (fields = {}) => chat('Say hello.', { max_tokens: 6, ...fields })
const stream = (fields = {}, headers?: Record<string, string>) =>
  engine.stream('/v1/chat/completions', hello({ stream: true, ...fields }), headers)

test('a response has the shape of the contract, and the served model name if the gateway sends one', async () => {
  const plain = await engine.ask('POST', '/v1/chat/completions', hello())
  assert.equal(plain.status, 200)
  ChatResponse.parse(plain.json)
  assert.match(plain.json.id, /^chatcmpl-\w+$/)
  assert.equal(plain.json.model, modelName)
  const named = await engine.ask('POST', '/v1/chat/completions', hello(), {
    'x-served-model-name': 'team/support',
    'x-request-id': 'req_abc',
  })
  assert.equal(named.json.model, 'team/support')
  assert.equal(named.headers['x-request-id'], 'req_abc')
})

test('a stream has one id, the role first, finish_reason last, and [DONE]', async () => {
  const response = stream()
  const { status, headers } = await response.headers
  const events = await readEvents(response)
  assert.equal(status, 200)
  assert.equal(headers['content-type'], 'text/event-stream; charset=utf-8')
  assert.equal(headers['cache-control'], 'no-cache, no-transform')
  assert.equal(headers['x-accel-buffering'], 'no')
  assert.ok(events.done)
  for (const chunk of events.data) ChatChunk.strict().parse(chunk)
  assert.equal(new Set(events.data.map((chunk) => `${chunk.id} ${chunk.created} ${chunk.model}`)).size, 1)
  assert.deepEqual(events.data[0].choices[0].delta, { role: 'assistant', content: '' })
  const reasons = events.data.map((chunk) => chunk.choices[0].finish_reason)
  assert.ok(reasons.slice(0, -1).every((reason) => reason === null))
  assert.equal(reasons.at(-1), 'length')
  assert.ok(events.data.every((chunk) => chunk.choices[0].logprobs === null && !('usage' in chunk)))
  assert.equal(
    textOf(events),
    (await engine.ask('POST', '/v1/chat/completions', hello())).json.choices[0].message.content,
  )
})

test('include_usage adds a usage chunk and null usage elsewhere; the gateway header adds only the chunk', async () => {
  const requested = await readEvents(stream({ stream_options: { include_usage: true } }))
  assert.deepEqual(requested.data.at(-1).choices, [])
  assert.equal(requested.data.at(-1).usage.completion_tokens, 6)
  assert.ok(requested.data.slice(0, -1).every((chunk) => chunk.usage === null))
  const metered = await readEvents(stream({}, { 'x-tunery-usage': 'always' }))
  assert.deepEqual(metered.data.at(-1).usage, requested.data.at(-1).usage)
  assert.ok(metered.data.slice(0, -1).every((chunk) => !('usage' in chunk)))
})

test('completions respond in their own shape, streamed or not', async () => {
  const body = { model: modelName, prompt: 'Once upon a time', max_tokens: 6, temperature: 0 }
  const whole = (await engine.ask('POST', '/v1/completions', body)).json
  assert.deepEqual(
    [whole.object, whole.usage.prompt_tokens, whole.choices[0].finish_reason],
    ['text_completion', 4, 'length'],
  )
  const events = await readEvents(engine.stream('/v1/completions', { ...body, stream: true }))
  assert.ok(events.done && events.data.every((chunk) => chunk.object === 'text_completion'))
  assert.equal(textOf(events), whole.choices[0].text)
  for (const [field, value] of Object.entries({ suffix: 'the end', best_of: 3, prompt: '', max_tokens: 0 })) {
    const rejected = await engine.ask('POST', '/v1/completions', { ...body, [field]: value })
    assert.deepEqual([rejected.status, rejected.json.error.param], [400, field])
  }
})

test('control tokens in a completions prompt are parsed, or stay text with parse_special false', async () => {
  const body = { model: modelName, prompt: '<|im_start|>', max_tokens: 1 }
  const tokens = async (fields: object) =>
    (await engine.ask('POST', '/v1/completions', { ...body, ...fields })).json.usage.prompt_tokens
  assert.equal(await tokens({}), 1)
  assert.ok((await tokens({ parse_special: false })) > 3)
})

test('with a suffix a model that can fills in the middle; control tokens in either text stay text', async (context) => {
  const prompt = 'def add(a, b):\n    return '
  const suffix = '\n\nprint(add(1, 2))\n'
  const body = { model: 'code', max_tokens: 8, temperature: 0, logprobs: 1, ...endless }
  const load = { name: 'code', path: codeModel(context) }
  assert.equal((await engine.ask('POST', '/internal/load_model', load)).status, 200)
  const ask = async (fields: object) => {
    const { status, json } = await engine.ask('POST', '/v1/completions', { ...body, ...fields })
    assert.equal(status, 200, JSON.stringify(json))
    const texts: string[] = json.choices.map((choice: { text: string }) => choice.text)
    const logprobs: number[] = json.choices[0].logprobs.token_logprobs
    return { texts, tokens: json.usage.prompt_tokens as number, logprobs }
  }
  const filled = await ask({ prompt, suffix })
  const written = await ask({ prompt: `<|fim_prefix|>${prompt}<|fim_suffix|>${suffix}<|fim_middle|>` })
  assert.deepEqual([filled.texts, filled.tokens], [written.texts, written.tokens])
  assert.ok(filled.logprobs.every((logprob, at) => Math.abs(logprob - written.logprobs[at]!) < 1e-3))
  const reordered = await ask({ prompt: `<|fim_suffix|>${suffix}<|fim_prefix|>${prompt}<|fim_middle|>` })
  assert.ok(filled.logprobs.some((logprob, at) => Math.abs(logprob - reordered.logprobs[at]!) > 1e-3))
  const streamed = await readEvents(engine.stream('/v1/completions', { ...body, prompt, suffix, stream: true }))
  assert.equal(textOf(streamed), filled.texts[0])
  const two = await ask({ prompt: ['import ', prompt], suffix })
  assert.equal(two.texts[1], filled.texts[0])

  const hostile = { prompt: `${prompt}<|fim_middle|>`, suffix: `<|im_end|>${suffix}` }
  assert.ok((await ask(hostile)).tokens > filled.tokens + 6)
  assert.equal((await ask({ ...hostile, parse_special: true })).tokens, filled.tokens + 2)
  const echoed = await engine.ask('POST', '/v1/completions', { ...body, prompt, suffix, echo: true })
  assert.deepEqual([echoed.status, echoed.json.error.param], [400, 'echo'])
  const other = await engine.ask('POST', '/v1/completions', { ...body, model: modelName, prompt, suffix })
  assert.deepEqual([other.status, other.json.error.code], [400, 'parameter_not_supported'])
  assert.match(other.json.error.message, /no tokens for fill-in-the-middle/)
  await engine.ask('POST', '/internal/unload_model', { name: 'code' })
})

/** The tiny model with tokens for fill-in-the-middle in place of others with as many letters. */
function codeModel(context: TestContext): string {
  const gguf = readFileSync(path.join(tinyModelsDir(), tiny, 'model.gguf'))
  for (const [token, other] of Object.entries({
    '<|fim_prefix|>': '<jupyter_text>',
    '<|fim_suffix|>': '<jupyter_code>',
    '<|fim_middle|>': '<empty_output>',
  }))
    gguf.write(token, gguf.indexOf(other))
  const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-fim-'))
  context.after(() => rmSync(folder, { recursive: true }))
  const file = path.join(folder, 'code.gguf')
  writeFileSync(file, gguf)
  return file
}

test('message content may be in parts, and the developer role counts as system', async () => {
  const parts = [
    { type: 'text', text: 'Say ' },
    { type: 'text', text: 'hello.' },
  ]
  const answers = await Promise.all(
    [
      hello({
        messages: [
          { role: 'system', content: 'Be brief.' },
          { role: 'user', content: 'Say hello.' },
        ],
      }),
      hello({
        messages: [
          { role: 'developer', content: 'Be brief.' },
          { role: 'user', content: parts },
        ],
      }),
    ].map((body) => engine.ask('POST', '/v1/chat/completions', body)),
  )
  assert.equal(answers[0]!.json.choices[0].message.content, answers[1]!.json.choices[0].message.content)
  assert.equal(answers[0]!.json.usage.prompt_tokens, answers[1]!.json.usage.prompt_tokens)
})

test('null parameters count as absent, and max_completion_tokens overrides max_tokens', async () => {
  const fields = {
    temperature: null,
    top_p: null,
    stop: null,
    tool_choice: null,
    max_tokens: 3,
    max_completion_tokens: 5,
    metadata: { a: 1 },
    user: 'u',
  }
  const answer = await engine.ask('POST', '/v1/chat/completions', hello(fields))
  assert.deepEqual([answer.status, answer.json.usage.completion_tokens], [200, 5])
})

test('an unknown model is a 404 in OpenAI’s error shape', async () => {
  const { status, json } = await engine.ask('POST', '/v1/chat/completions', hello({ model: 'nobody/nothing' }))
  assert.equal(status, 404)
  assert.deepEqual(
    [json.error.code, json.error.type, json.error.param],
    ['model_not_found', 'not_found_error', 'model'],
  )
  assert.match(json.error.message, /nobody\/nothing/)
})

test('a body with gzip is decoded within the limit, and other encodings are refused', async () => {
  const body = Buffer.from(JSON.stringify(hello()))
  const send = (bytes: Buffer, encoding: string) =>
    engine.ask('POST', '/v1/chat/completions', bytes, { 'content-encoding': encoding })
  assert.equal((await send(gzipSync(body), 'gzip')).status, 200)
  assert.equal((await send(body, 'identity')).status, 200)
  for (const [bytes, encoding, status, code] of [
    [brotliCompressSync(body), 'br', 415, 'unsupported_media_type'],
    [body, 'gzip', 400, 'invalid_request'],
    [gzipSync(body).subarray(0, 30), 'gzip', 400, 'invalid_request'],
    [gzipSync(Buffer.alloc(2 ** 26)), 'gzip', 413, 'body_too_large'],
  ] as const) {
    const answer = await send(bytes, encoding)
    assert.deepEqual([answer.status, answer.json.error.code], [status, code])
  }
})

test('a bias of a token that the model does not have is a 400', async () => {
  const last = 49_151
  assert.equal((await engine.ask('POST', '/v1/chat/completions', hello({ logit_bias: { [last]: 1 } }))).status, 200)
  const { status, json } = await engine.ask('POST', '/v1/chat/completions', hello({ logit_bias: { [last + 1]: 1 } }))
  assert.deepEqual([status, json.error.code, json.error.param], [400, 'invalid_request', 'logit_bias'])
  assert.match(json.error.message, /has 49152/)
})

for (const [field, fields] of Object.entries({
  temperature: { temperature: 2.5 },
  top_p: { top_p: -0.1 },
  top_k: { top_k: 0 },
  max_tokens: { max_tokens: 4097 },
  stop: { stop: ['a', 'b', 'c', 'd', 'e'] },
  seed: { seed: 1.5 },
  messages: { messages: [] },
  'messages.0.role': { messages: [{ role: 'robot', content: 'x' }] },
  'messages.0.content': { messages: [{ role: 'user', content: 7 }] },
  n: { n: 9 },
  'tools.0.type': { tools: [{ function: { name: 'f' } }] },
  top_logprobs: { logprobs: true, top_logprobs: 21 },
  'logit_bias.x': { logit_bias: { x: 1 } },
  min_p: { min_p: 2 },
  presence_penalty: { presence_penalty: 3 },
  repetition_penalty: { repetition_penalty: 0 },
})) {
  test(`an invalid ${field} is a 400 that names it`, async () => {
    const { status, json } = await engine.ask('POST', '/v1/chat/completions', hello(fields))
    assert.deepEqual([status, json.error.code, json.error.param], [400, 'invalid_request', field])
    assert.ok(json.error.message.startsWith(`${field}: `))
  })
}

test('invalid JSON, a body too large, an unknown route and a wrong method have their own errors', async () => {
  const post = (body: string | Buffer) => engine.ask('POST', '/v1/chat/completions', body)
  assert.equal((await post('{"model":')).json.error.code, 'invalid_json')
  assert.equal((await post(Buffer.from([0x22, 0xff, 0x22]))).json.error.code, 'invalid_json')
  assert.equal((await post('[]')).status, 400)
  const large = await post(JSON.stringify(hello({ padding: 'x'.repeat(9 * 1024 * 1024) }))).catch((error) => ({
    status: error.code,
  }))
  // The response, or a closed connection if the client was still writing.
  assert.ok([413, 'EPIPE', 'ECONNRESET'].includes(large.status))
  assert.equal((await engine.ask('GET', '/v2/nothing')).status, 404)
  const wrong = await engine.ask('GET', '/v1/chat/completions')
  assert.deepEqual([wrong.status, wrong.headers.allow], [405, 'POST'])
})

test('health, metrics and the list of models respond', async () => {
  assert.deepEqual((await engine.ask('GET', '/health')).json, { status: 'ok' })
  assert.ok((await engine.metric('generation_tokens_total')) > 0)
  const list = await engine.ask('GET', '/v1/models')
  ModelList.parse(list.json)
  assert.deepEqual(
    list.json.data.map((card: { id: string; root: string }) => [card.id, card.root]),
    [[modelName, modelPath]],
  )
})

test('loading a base model is idempotent per name, and it unloads', async () => {
  const load = (body: object) => engine.ask('POST', '/internal/load_model', body)
  assert.equal((await load({ name: 'second', path: modelPath })).status, 200)
  assert.equal((await load({ name: 'second', path: modelPath })).status, 200)
  assert.equal((await load({ name: 'second', path: '/elsewhere.gguf' })).json.error.code, 'name_taken')
  assert.equal((await load({ name: 'third', path: '/elsewhere.gguf' })).json.error.param, 'path')
  assert.match((await load({ name: 'third', path: import.meta.filename })).json.error.message, /not a GGUF file/)
  assert.equal((await engine.ask('POST', '/v1/chat/completions', hello({ model: 'second' }))).status, 200)
  const unload = () => engine.ask('POST', '/internal/unload_model', { name: 'second' })
  assert.equal((await unload()).status, 200)
  assert.equal((await unload()).status, 404)
  assert.equal((await engine.ask('POST', '/v1/chat/completions', hello({ model: 'second' }))).status, 404)
  assert.equal((await engine.ask('POST', '/v1/chat/completions', hello())).status, 200)
})

test('a running request finishes before its model is unloaded', async () => {
  await engine.ask('POST', '/internal/load_model', { name: 'leaving', path: modelPath })
  const running = readEvents(
    engine.stream('/v1/chat/completions', hello({ model: 'leaving', stream: true, max_tokens: 60, temperature: 1 })),
  )
  const unloaded = engine.ask('POST', '/internal/unload_model', { name: 'leaving' })
  assert.equal((await unloaded).status, 200)
  const events = await running
  assert.ok(events.done)
})
