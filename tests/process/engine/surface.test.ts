// Features beyond plain text: several answers, log-probabilities, lists of prompts, echo, embeddings, aborted usage.
import assert from 'node:assert/strict'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { ChatResponse } from '../../../contract/chat.ts'
import { CompletionResponse } from '../../../contract/completions.ts'
import { EmbeddingsResponse } from '../../../contract/embeddings.ts'
import { chat, type Engine, modelName, modelPath, readEvents, root, startEngine, until } from './engine-process.ts'

const embeddingPath = join(root, '.local/models/sentence-transformers/all-MiniLM-L6-v2/model.gguf')
let engine: Engine
before(async () => {
  engine = await startEngine(['--model', `${modelName}=${modelPath}`, '--model', `mini=${embeddingPath}`])
})
after(() => engine.stop())

async function ask(path: string, body: object) {
  const { status, json } = await engine.ask('POST', path, body)
  assert.equal(status, 200, JSON.stringify(json))
  return json
}
const complete = async (fields: object) =>
  CompletionResponse.parse(await ask('/v1/completions', { model: modelName, temperature: 0, max_tokens: 4, ...fields }))
const embed = async (fields: object) =>
  EmbeddingsResponse.parse(await ask('/v1/embeddings', { model: 'mini', ...fields }))
const dot = (a: number[], b: number[]) => a.reduce((sum, value, index) => sum + value * b[index]!, 0)

test('n gives that many answers in one stream with one id, and usage counts the prompt once', async () => {
  const body = chat('Tell me a word.', { n: 3, temperature: 1, seed: 5, max_tokens: 4 })
  const whole = ChatResponse.parse(await ask('/v1/chat/completions', body))
  assert.deepEqual(
    whole.choices.map(({ index }) => index),
    [0, 1, 2],
  )
  const one = ChatResponse.parse(
    await ask('/v1/chat/completions', chat('Tell me a word.', { temperature: 1, seed: 5, max_tokens: 4 })),
  )
  assert.equal(whole.usage.prompt_tokens, one.usage.prompt_tokens)
  assert.ok(
    new Set(whole.choices.map(({ message }) => message.content)).size > 1,
    'choices of one seed are not all the same',
  )
  const events = await readEvents(engine.stream('/v1/chat/completions', { ...body, stream: true }))
  assert.equal(new Set(events.data.map(({ id }) => id)).size, 1)
  for (const index of [0, 1, 2]) {
    const chunks = events.data.filter(({ choices }) => choices[0].index === index)
    assert.equal(chunks[0].choices[0].delta.role, 'assistant')
    assert.equal(
      chunks.map(({ choices }) => choices[0].delta.content ?? '').join(''),
      whole.choices[index]!.message.content,
    )
    assert.equal(chunks.at(-1).choices[0].finish_reason, whole.choices[index]!.finish_reason)
  }
})

test('log-probabilities list each token of the text with its likeliest alternatives, streamed or not', async () => {
  const body = chat('Count to five.', { logprobs: true, top_logprobs: 3, max_tokens: 8 })
  const { choices } = ChatResponse.parse(await ask('/v1/chat/completions', body))
  const positions = choices[0]!.logprobs!.content!
  assert.equal(positions.map(({ token }) => token).join(''), choices[0]!.message.content)
  for (const { logprob, top_logprobs, token, bytes } of positions) {
    assert.equal(top_logprobs.length, 3)
    // At temperature 0 the sampled token is the likeliest.
    assert.deepEqual([top_logprobs[0]!.token, top_logprobs[0]!.logprob], [token, logprob])
    assert.ok(
      logprob <= 0 && top_logprobs.reduce((sum, alternative) => sum + Math.exp(alternative.logprob), 0) <= 1.0001,
    )
    assert.equal(Buffer.from(bytes!).toString(), token)
  }
  const events = await readEvents(engine.stream('/v1/chat/completions', { ...body, stream: true }))
  assert.deepEqual(
    events.data.flatMap((chunk) => chunk.choices[0].logprobs?.content ?? []).map(({ token }) => token),
    positions.map(({ token }) => token),
  )
  const rejected = await engine.ask('POST', '/v1/chat/completions', chat('x', { top_logprobs: 2 }))
  assert.deepEqual([rejected.status, rejected.json.error.param], [400, 'top_logprobs'])
})

test('the log-probabilities of a stop sequence are left out with it', async () => {
  const body = chat('Count from one to ten in digits, with commas.', { logprobs: true, max_tokens: 30 })
  const free = ChatResponse.parse(await ask('/v1/chat/completions', body)).choices[0]!
  const stop = free.message.content!.slice(6, 9)
  const cut = ChatResponse.parse(await ask('/v1/chat/completions', { ...body, stop })).choices[0]!
  const tokens = cut.logprobs!.content!.map(({ token }) => token).join('')
  assert.equal(cut.message.content, free.message.content!.slice(0, free.message.content!.indexOf(stop)))
  assert.ok(
    tokens.startsWith(cut.message.content!) && tokens.length - cut.message.content!.length < 20,
    JSON.stringify(tokens),
  )
})

test('prompts may be a list, and token prompts are validated', async () => {
  const texts = await complete({ prompt: ['Once upon a', 'The sky is'], n: 2 })
  assert.equal(texts.choices.length, 4)
  assert.equal(texts.choices[0]!.text, texts.choices[1]!.text)
  assert.notEqual(texts.choices[0]!.text, texts.choices[2]!.text)
  const { choices } = await complete({ prompt: 'Once upon a', echo: true, logprobs: 0, max_tokens: 0 })
  const tokens = choices[0]!.logprobs!.tokens
  assert.deepEqual(tokens, ['Once', ' upon', ' a'])
  const ids = await complete({ prompt: 'x', logprobs: 5, max_tokens: 1, logit_bias: { 100: 100 } })
  assert.equal(ids.choices[0]!.finish_reason, 'length')
  const unknown = await engine.ask('POST', '/v1/completions', { model: modelName, prompt: [1, 49_152] })
  assert.deepEqual([unknown.status, unknown.json.error.param], [400, 'prompt'])
  // This vocabulary has no token for U+0014 and drops it.
  const nothing = await engine.ask('POST', '/v1/completions', { model: modelName, prompt: ['x', '\u0014'] })
  assert.deepEqual([nothing.status, nothing.json.error.param], [400, 'prompt'], 'a prompt without tokens is rejected')
})

test('echo returns the prompt first, with the same log-probabilities as generation', async () => {
  const written = await complete({ prompt: 'The capital of France is', max_tokens: 6, logprobs: 2 })
  const { text } = written.choices[0]!
  const echoed = await complete({ prompt: `The capital of France is${text}`, max_tokens: 0, echo: true, logprobs: 2 })
  const { logprobs, text: whole } = echoed.choices[0]!
  assert.equal(whole, `The capital of France is${text}`)
  assert.deepEqual([logprobs!.token_logprobs[0], logprobs!.top_logprobs![0]], [null, null])
  assert.deepEqual(logprobs!.tokens.slice(-6), written.choices[0]!.logprobs!.tokens)
  logprobs!.token_logprobs.slice(-6).forEach((logprob, index) => {
    const first = written.choices[0]!.logprobs!.token_logprobs[index]!
    // Batches of different sizes round differently.
    assert.ok(Math.abs(logprob! - first) < 0.15, `${logprob} is not ${first}`)
  })
  assert.ok(logprobs!.text_offset.every((offset, index) => whole.startsWith(logprobs!.tokens[index]!, offset)))
  assert.equal(echoed.usage!.completion_tokens, 0)
})

test('presence and frequency penalties change the answer', async () => {
  const free = await complete({ prompt: 'one two one two one two one two', max_tokens: 12 })
  const bound = await complete({
    prompt: 'one two one two one two one two',
    max_tokens: 12,
    frequency_penalty: 2,
    presence_penalty: 2,
  })
  assert.notEqual(free.choices[0]!.text, bound.choices[0]!.text)
})

test('speculative decoding saves steps without changing the answer, under a schema too', async () => {
  const repeat =
    'Repeat exactly: The invoice 4711 of Acme Corporation in Springfield names 12 blue widgets and 3 red ones.'
  const properties = { customer: { type: 'string', maxLength: 40 }, city: { enum: ['Springfield', 'Shelbyville'] } }
  const schema = { type: 'object', properties, required: ['customer', 'city'], additionalProperties: false }
  const bodies = [
    chat(repeat, { max_tokens: 40 }),
    chat(repeat, {
      max_tokens: 40,
      response_format: { type: 'json_schema', json_schema: { name: 'invoice', schema } },
    }),
  ]
  for (const body of bodies) {
    // There are no drafts with a seed.
    const plain = ChatResponse.parse(await ask('/v1/chat/completions', { ...body, seed: 1 }))
    // The second time it has seen the answer.
    for (const round of [1, 2]) {
      const before = await engine.metric('decode_seconds_count')
      const speculated = ChatResponse.parse(await ask('/v1/chat/completions', body))
      const steps = (await engine.metric('decode_seconds_count')) - before
      assert.equal(speculated.choices[0]!.message.content, plain.choices[0]!.message.content)
      assert.deepEqual(speculated.usage.completion_tokens, plain.usage.completion_tokens)
      const tokens = speculated.usage.completion_tokens
      if (round === 2) assert.ok(steps < tokens * 0.7, `${steps} steps for ${tokens} tokens`)
    }
  }
})

test('embeddings of similar texts are similar, and neither batching nor base64 changes them', async () => {
  const texts = [
    'A cat sleeps.',
    'A kitten naps.',
    'Interest rates rose.',
    ...Array.from({ length: 60 }, (_, index) => `Filler text number ${index}.`),
  ]
  const all = await embed({ input: texts })
  const vectors = all.data.map(({ embedding }) => embedding as number[])
  assert.equal(vectors.length, texts.length)
  assert.ok(vectors.every((vector) => vector.length === 384 && Math.abs(dot(vector, vector) - 1) < 1e-5))
  assert.ok(dot(vectors[0]!, vectors[1]!) > dot(vectors[0]!, vectors[2]!) + 0.3)
  const alone = await embed({ input: texts[2]!, encoding_format: 'base64' })
  const bytes = Buffer.from(alone.data[0]!.embedding as string, 'base64')
  const decoded = Array.from(new Float32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length)))
  assert.ok(dot(decoded, vectors[2]!) > 0.999)
  assert.equal(alone.usage.prompt_tokens, alone.usage.total_tokens)
})

test('an invalid embedding request is rejected with its reason', async () => {
  for (const [fields, code, param] of [
    [{ input: 'word '.repeat(600) }, 'context_length_exceeded', 'input'],
    [{ input: [] }, 'invalid_request', 'input'],
    [{ input: ['a', ''] }, 'invalid_request', 'input.1'],
    [{ input: 'a', dimensions: 100 }, 'parameter_not_supported', 'dimensions'],
    [{ input: 'a', model: modelName }, 'model_not_callable', 'model'],
  ] as const) {
    const { status, json } = await engine.ask('POST', '/v1/embeddings', { model: 'mini', ...fields })
    assert.deepEqual([status, json.error.code, json.error.param], [400, code, param])
  }
  const chatted = await engine.ask('POST', '/v1/chat/completions', chat('hi', { model: 'mini' }))
  assert.equal(chatted.json.error.code, 'model_not_callable')
})

test('the usage of an aborted request is available by its request id', async () => {
  const headers = { 'x-request-id': 'left-1' }
  const stream = engine.stream(
    '/v1/chat/completions',
    chat('Tell a long story.', { max_tokens: 1000, stream: true, logit_bias: { 2: -100 } }),
    headers,
  )
  for await (const _ of stream.chunks) break
  stream.disconnect()
  await until(async () => (await engine.metric('sequences_running')) === 0, 'its slot to be free')
  const { status, json } = await engine.ask('GET', '/internal/usage/left-1')
  assert.equal(status, 200)
  assert.ok(json.completion_tokens > 0 && json.completion_tokens < 1000 && json.prompt_tokens > 20)
  assert.equal((await engine.ask('GET', '/internal/usage/nobody')).status, 404)
})
