import assert from 'node:assert/strict'
import { test } from 'node:test'
import type OpenAI from 'openai'
import { client, model } from './support/service.ts'

const ask = (content: string): OpenAI.ChatCompletionMessageParam[] => [{ role: 'user', content }]

test('a whole answer matches the client’s types', async () => {
  const answer = await client.chat.completions.create({
    model,
    messages: ask('Say hello.'),
    max_tokens: 8,
    temperature: 0,
  })
  assert.equal(answer.object, 'chat.completion')
  assert.match(answer.id, /^chatcmpl-/)
  assert.equal(answer.model, model)
  assert.ok(Math.abs(answer.created - Date.now() / 1000) < 60, 'created is in seconds')
  const [choice] = answer.choices
  assert.equal(choice!.message.role, 'assistant')
  assert.equal(typeof choice!.message.content, 'string')
  assert.equal(choice!.message.refusal, null)
  const { prompt_tokens, completion_tokens, total_tokens } = answer.usage!
  assert.ok(prompt_tokens > 0 && completion_tokens > 0 && completion_tokens <= 8)
  assert.equal(total_tokens, prompt_tokens + completion_tokens)
  assert.match(String(answer._request_id), /./, 'x-request-id reaches the client')
})

test('a stream is the same answer in pieces: one id, the role first, one finish reason last', async () => {
  const request = { model, messages: ask('Count to five.'), max_tokens: 16, temperature: 0 }
  const whole = await client.chat.completions.create(request)
  const chunks: OpenAI.ChatCompletionChunk[] = []
  for await (const chunk of await client.chat.completions.create({ ...request, stream: true })) chunks.push(chunk)
  assert.equal(new Set(chunks.map((chunk) => `${chunk.id} ${chunk.created} ${chunk.model} ${chunk.object}`)).size, 1)
  assert.equal(chunks[0]!.choices[0]!.delta.role, 'assistant')
  assert.ok(chunks.every((chunk) => Array.isArray(chunk.choices) && !chunk.usage))
  assert.equal(chunks.map((chunk) => chunk.choices[0]?.delta.content ?? '').join(''), whole.choices[0]!.message.content)
  const reasons = chunks.map((chunk) => chunk.choices[0]?.finish_reason)
  assert.equal(reasons.pop(), whole.choices[0]!.finish_reason)
  assert.ok(reasons.every((reason) => reason === null))
})

test('include_usage adds one last chunk without choices; other stream_options add none', async () => {
  const request = { model, messages: ask('Hi'), max_tokens: 4, stream: true as const }
  const chunks: OpenAI.ChatCompletionChunk[] = []
  for await (const chunk of await client.chat.completions.create({
    ...request,
    stream_options: { include_usage: true },
  }))
    chunks.push(chunk)
  const last = chunks.pop()!
  assert.deepEqual(last.choices, [])
  assert.equal(last.usage!.total_tokens, last.usage!.prompt_tokens + last.usage!.completion_tokens)
  assert.ok(chunks.every((chunk) => chunk.choices.length === 1 && !chunk.usage))
  for await (const chunk of await client.chat.completions.create({
    ...request,
    stream_options: { include_usage: false },
  }))
    assert.ok(!chunk.usage)
})

test('n gives n answers, each with its index, whole and streamed', async () => {
  const request = { model, messages: ask('Name a colour.'), max_tokens: 6, n: 3, temperature: 1.2, seed: 7 }
  const whole = await client.chat.completions.create(request)
  assert.deepEqual(
    whole.choices.map(({ index }) => index),
    [0, 1, 2],
  )
  const finished = new Map<number, string>()
  for await (const chunk of await client.chat.completions.create({ ...request, stream: true }))
    for (const choice of chunk.choices) if (choice.finish_reason) finished.set(choice.index, choice.finish_reason)
  assert.deepEqual([...finished.keys()].sort(), [0, 1, 2])
})

test('logprobs has one entry per token, with the requested number of alternatives', async () => {
  const request = { model, messages: ask('Say yes.'), max_tokens: 5, temperature: 0, logprobs: true, top_logprobs: 3 }
  const whole = await client.chat.completions.create(request)
  const content = whole.choices[0]!.logprobs!.content!
  assert.ok(content.length > 0 && content.length <= 5)
  for (const token of content) {
    assert.ok(token.logprob <= 0)
    assert.equal(token.top_logprobs.length, 3)
    assert.equal(token.top_logprobs[0]!.token, token.token, 'greedy: the taken token is the likeliest')
    assert.ok(token.top_logprobs[0]!.logprob >= token.top_logprobs[1]!.logprob)
    assert.equal(Buffer.from(token.bytes!).toString(), token.token)
  }
  assert.ok(
    content
      .map(({ token }) => token)
      .join('')
      .startsWith(whole.choices[0]!.message.content!.slice(0, 3)),
  )
  const streamed: string[] = []
  for await (const chunk of await client.chat.completions.create({ ...request, stream: true }))
    for (const token of chunk.choices[0]?.logprobs?.content ?? []) streamed.push(token.token)
  assert.deepEqual(
    streamed,
    content.map(({ token }) => token),
  )
})

test('no part of a stop sequence is in the answer, whole or streamed', async () => {
  const request = { model, messages: ask('Count: one, two, three, four, five.'), max_tokens: 40, temperature: 0 }
  const plain = (await client.chat.completions.create(request)).choices[0]!.message.content!
  // A sequence across two words, taken from the model's own answer.
  const at = plain.indexOf(' ', Math.min(8, plain.length - 4))
  const stop = plain.slice(at - 2, at + 3)
  const stopped = await client.chat.completions.create({ ...request, stop: [stop, 'never in there'] })
  assert.equal(stopped.choices[0]!.message.content, plain.slice(0, plain.indexOf(stop)))
  assert.equal(stopped.choices[0]!.finish_reason, 'stop')
  let streamed = ''
  for await (const chunk of await client.chat.completions.create({ ...request, stop, stream: true }))
    streamed += chunk.choices[0]?.delta.content ?? ''
  assert.equal(streamed, stopped.choices[0]!.message.content)
})

test('message forms: developer, parts, several turns, names, max_completion_tokens, unknown fields', async () => {
  const answer = await client.chat.completions.create({
    model,
    messages: [
      { role: 'developer', content: 'Be brief.' },
      {
        role: 'user',
        name: 'someone',
        content: [
          { type: 'text', text: 'Hi.' },
          { type: 'text', text: ' Who are you?' },
        ],
      },
      { role: 'assistant', content: [{ type: 'text', text: 'A model.' }] },
      { role: 'user', content: 'Thanks.' },
    ],
    max_completion_tokens: 3,
    presence_penalty: 0.5,
    frequency_penalty: 0.5,
    logit_bias: { '5': -100 },
    user: 'u-1',
    metadata: { trace: 'x' },
    parallel_tool_calls: true,
    store: false,
    // @ts-expect-error unknown fields are ignored
    some_new_field: { a: 1 },
  })
  assert.ok(answer.usage!.completion_tokens <= 3)
})

test('the streaming helper collects the final answer with its usage', async () => {
  const stream = client.chat.completions.stream({
    model,
    messages: ask('Hello!'),
    max_tokens: 6,
    stream_options: { include_usage: true },
  })
  let streamed = ''
  stream.on('content', (delta) => {
    streamed += delta
  })
  const final = await stream.finalChatCompletion()
  assert.equal(final.choices[0]!.message.content, streamed)
  assert.ok((await stream.totalUsage()).completion_tokens > 0)
})

test('the same seed gives the same answer', async () => {
  const request = { model, messages: ask('Invent a name.'), max_tokens: 8, temperature: 1.5, seed: 42 }
  const [one, two] = [await client.chat.completions.create(request), await client.chat.completions.create(request)]
  assert.equal(one.choices[0]!.message.content, two.choices[0]!.message.content)
})
