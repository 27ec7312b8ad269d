import assert from 'node:assert/strict'
import { test } from 'node:test'
import OpenAI from 'openai'
import { client, embeddingModel, key, model, url } from './support/service.ts'

test('completions accept strings, tokens and lists of both, with one choice per prompt', async () => {
  const one = await client.completions.create({
    model,
    prompt: 'The capital of France is',
    max_tokens: 4,
    temperature: 0,
  })
  assert.equal(one.object, 'text_completion')
  assert.equal(one.choices.length, 1)
  assert.equal(one.usage!.completion_tokens, 4)
  const two = await client.completions.create({
    model,
    prompt: ['One, two,', 'The capital of France is'],
    max_tokens: 4,
    temperature: 0,
  })
  assert.deepEqual(
    two.choices.map(({ index }) => index),
    [0, 1],
  )
  assert.equal(two.choices[1]!.text, one.choices[0]!.text)
  assert.equal((await client.completions.create({ model, prompt: [504, 3575], max_tokens: 2 })).choices.length, 1)
  assert.equal(
    (await client.completions.create({ model, prompt: [[504, 3575], [504]], max_tokens: 2 })).choices.length,
    2,
  )
})

test('echo with logprobs scores the prompt’s tokens, the first as null; max_tokens 0 generates nothing', async () => {
  const prompt = 'The capital of France is Paris'
  const scored = await client.completions.create({ model, prompt, max_tokens: 0, echo: true, logprobs: 2 })
  const [choice] = scored.choices
  assert.equal(choice!.text, prompt)
  const { tokens, token_logprobs, top_logprobs, text_offset } = choice!.logprobs!
  assert.equal(tokens!.join(''), prompt)
  assert.equal(token_logprobs![0], null)
  assert.ok(token_logprobs!.slice(1).every((value) => value <= 0))
  assert.ok(
    top_logprobs!
      .slice(1)
      .map((top) => Object.keys(top).length)
      .every((count) => count >= 2 && count <= 3),
  )
  assert.deepEqual(
    text_offset,
    tokens!.map((_, index) => tokens!.slice(0, index).join('').length),
  )
  assert.equal(scored.usage!.completion_tokens ?? 0, 0)
  const both = await client.completions.create({ model, prompt, max_tokens: 3, echo: true, temperature: 0 })
  assert.ok(both.choices[0]!.text.startsWith(prompt) && both.choices[0]!.text.length > prompt.length)
})

test('a completion streams in text chunks, with the usage last if requested', async () => {
  const request = { model, prompt: 'Once upon a time', max_tokens: 8, temperature: 0 }
  const whole = await client.completions.create(request)
  let text = ''
  let usage: unknown
  for await (const chunk of await client.completions.create({
    ...request,
    stream: true,
    stream_options: { include_usage: true },
  })) {
    text += chunk.choices[0]?.text ?? ''
    usage = chunk.usage ?? usage
  }
  assert.equal(text, whole.choices[0]!.text)
  assert.deepEqual((usage as OpenAI.CompletionUsage).completion_tokens, 8)
})

test('a model without tokens for fill-in-the-middle refuses a suffix clearly', async () => {
  await assert.rejects(client.completions.create({ model, prompt: 'a', suffix: 'z' }), {
    status: 400,
    param: 'suffix',
    code: 'parameter_not_supported',
  })
})

test('embeddings are the same in base64 (the client’s default) and as floats', async () => {
  const input = ['The cat sat.', 'Completely different words about trains.']
  const byDefault = await client.embeddings.create({ model: embeddingModel, input })
  const asFloats = await client.embeddings.create({ model: embeddingModel, input, encoding_format: 'float' })
  assert.equal(byDefault.object, 'list')
  assert.deepEqual(
    byDefault.data.map(({ index }) => index),
    [0, 1],
  )
  for (const [at, { embedding }] of byDefault.data.entries()) {
    assert.ok(Array.isArray(embedding) && embedding.length > 8)
    const other = asFloats.data[at]!.embedding
    assert.equal(other.length, embedding.length)
    assert.ok(embedding.every((value, index) => Math.abs(value - other[index]!) < 1e-3))
  }
  const raw = await client.embeddings.create({ model: embeddingModel, input: 'x', encoding_format: 'base64' })
  assert.equal(Buffer.from(raw.data[0]!.embedding as never as string, 'base64').length % 4, 0)
  assert.ok(byDefault.usage.prompt_tokens > 0 && byDefault.usage.total_tokens === byDefault.usage.prompt_tokens)
  assert.equal((await client.embeddings.create({ model: embeddingModel, input: [504, 3575] })).data.length, 1)
})

test('models are listed and retrieved, also with a slash in the id', async () => {
  const listed: OpenAI.Model[] = []
  for await (const model of client.models.list()) listed.push(model)
  const mine = listed.find(({ id }) => id === model)!
  assert.equal(mine.object, 'model')
  assert.equal(typeof mine.created, 'number')
  assert.equal(typeof mine.owned_by, 'string')
  assert.equal((await client.models.retrieve(model)).id, model)
  await assert.rejects(client.models.retrieve('nobody/nothing'), { status: 404, code: 'model_not_found' })
})

const messages = [{ role: 'user' as const, content: 'Hi' }]

test('each error has the client’s class, code, type and param, and is not retried', async () => {
  let requestCount = 0
  const counting = (apiKey: string) =>
    new OpenAI({
      apiKey,
      baseURL: url,
      fetch: (...args) => {
        requestCount++
        return fetch(...args)
      },
    })
  async function rejects(promise: Promise<unknown>, type: new (...args: never[]) => Error, expected: object) {
    requestCount = 0
    const error = await promise.then(
      () => assert.fail('it was answered'),
      (thrown: Error) => thrown,
    )
    assert.ok(error instanceof type, `${error.constructor.name}: ${error.message}`)
    for (const [name, value] of Object.entries(expected)) assert.equal(error[name as keyof Error], value, name)
    assert.equal(requestCount, 1, 'requests sent')
    assert.match(error.message, /[a-z]/)
  }
  const good = counting(key)
  const create = (body: object) =>
    good.chat.completions.create({ model, messages, ...body } as OpenAI.ChatCompletionCreateParamsNonStreaming)
  await rejects(create({ model: 'nobody/nothing' }), OpenAI.NotFoundError, {
    code: 'model_not_found',
    param: 'model',
    type: 'not_found_error',
  })
  await rejects(create({ temperature: 3 }), OpenAI.BadRequestError, {
    code: 'invalid_request',
    param: 'temperature',
    type: 'invalid_request_error',
  })
  await rejects(create({ messages: [] }), OpenAI.BadRequestError, { param: 'messages' })
  await rejects(create({ n: 9 }), OpenAI.BadRequestError, { param: 'n' })
  await rejects(create({ top_logprobs: 2 }), OpenAI.BadRequestError, { param: 'top_logprobs' })
  await rejects(
    create({
      messages: [{ role: 'user', content: [{ type: 'image_url', image_url: { url: 'data:image/png;base64,AA==' } }] }],
    }),
    OpenAI.BadRequestError,
    {},
  )
  await rejects(counting('tun_wrong').chat.completions.create({ model, messages }), OpenAI.AuthenticationError, {
    code: 'invalid_api_key',
  })
})

test('the error for a prompt that is too long has both numbers', async () => {
  await assert.rejects(
    client.chat.completions.create({ model, messages: [{ role: 'user', content: 'word '.repeat(20_000) }] }),
    (error: InstanceType<typeof OpenAI.BadRequestError>) => {
      assert.equal(error.status, 400)
      assert.equal(error.code, 'context_length_exceeded')
      assert.match(error.message, /\d[\d,]{3,}.*\d[\d,]{3,}/s)
      return true
    },
  )
})

test('null means not given', async () => {
  const fields = [
    'temperature',
    'top_p',
    'stop',
    'n',
    'seed',
    'tools',
    'tool_choice',
    'response_format',
    'logprobs',
    'stream',
    'stream_options',
    'user',
  ]
  const body = { model, messages, max_tokens: 2, ...Object.fromEntries(fields.map((name) => [name, null])) }
  const answer = await client.chat.completions.create(body as never as OpenAI.ChatCompletionCreateParamsNonStreaming)
  assert.equal(answer.choices.length, 1)
})
