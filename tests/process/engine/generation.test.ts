// Answers of a real model through a real engine.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { root } from '../../../lib/root.ts'
import { full } from '../../support/full.ts'
import { chat, type Engine, modelName, ownKernels, readEvents, startEngine, textOf, until } from './engine-process.ts'

let engine: Engine
before(async () => {
  engine = await startEngine()
})
after(() => engine.stop())

const ask = async (body: object, headers?: Record<string, string>) =>
  (await engine.ask('POST', '/v1/chat/completions', body, headers)).json
const textFor = async (body: object) => (await ask(body)).choices[0].message.content as string
const story = 'Tell me a story about a fox.'

test('the greedy answer is the same alone, batched, in a grown runner and with a cached prefix', async () => {
  const prompts = [
    story,
    'List three fruits.',
    'Write a poem on rain.',
    'Why is the sky blue?',
    'Hi',
    'Explain gravity.',
    'Who was Napoleon?',
    'Count to ten.',
  ]
  const alone: string[] = []
  for (const prompt of prompts) alone.push(await textFor(chat(prompt, { max_tokens: 16 })))
  // A different account for each, so that no prefix is cached and all are computed together.
  const apart = await Promise.all(
    prompts.map((prompt) => ask(chat(prompt, { max_tokens: 16 }), { 'x-tunery-account': prompt.slice(0, 4) })),
  )
  assertNearlyAllEqual(
    apart.map((answer) => answer.choices[0].message.content),
    alone,
  )
  assertNearlyAllEqual(await Promise.all(prompts.map((prompt) => textFor(chat(prompt, { max_tokens: 16 })))), alone)
  assert.ok(new Set(alone).size > 6)
})

// The library's kernels may round a batch of eight differently from a batch of one, which may change the choice between
// two equally likely tokens; ours do not. A sequence that read another's cache would change every answer.
function assertNearlyAllEqual(answers: string[], expected: string[]): void {
  const different = answers.filter((answer, index) => answer !== expected[index])
  assert.ok(
    different.length <= (ownKernels ? 0 : 2),
    `${different.length} of ${answers.length} answers differ: ${JSON.stringify({ answers, expected })}`,
  )
}

test('the same seed gives the same text, another seed another text, and top_p 0 the likeliest tokens', async () => {
  const seeded = (seed: number, fields = {}) =>
    textFor(chat(story, { temperature: 1.2, max_tokens: 16, seed, ...fields }))
  assert.equal(await seeded(7), await seeded(7))
  assert.notEqual(await seeded(7), await seeded(8))
  assert.equal(await seeded(4_294_967_295), await seeded(4_294_967_295))
  assert.equal(await seeded(7, { top_p: 0 }), await textFor(chat(story, { max_tokens: 16 })))
  assert.equal(await seeded(8, { top_k: 1 }), await textFor(chat(story, { max_tokens: 16 })))
})

test('usage counts the actual tokens, streamed or not', async () => {
  const whole = await ask(chat(story, { max_tokens: 9 }))
  assert.equal(whole.choices[0].finish_reason, 'length')
  // Prompt: 23 tokens of the default system message, 3 + 8 + 2 of the user's, 3 that start the answer. transformers
  // counts the same.
  const { prompt_tokens, completion_tokens, total_tokens } = whole.usage
  assert.deepEqual([prompt_tokens, completion_tokens, total_tokens], [38, 9, 47])
  const events = await readEvents(
    engine.stream(
      '/v1/chat/completions',
      chat(story, { max_tokens: 9, stream: true, stream_options: { include_usage: true } }),
    ),
  )
  assert.deepEqual(
    { ...events.data.at(-1).usage, prompt_tokens_details: null },
    { ...whole.usage, prompt_tokens_details: null },
  )
  assert.equal(textOf(events), whole.choices[0].message.content)
})

test('a stop sequence across tokens ends the answer before it, and no part of it is streamed', async () => {
  const full = await textFor(chat(story, { max_tokens: 40 }))
  const words = full.split(' ')
  // From the middle of one word to the middle of the next.
  const stop = `${words[5]!.slice(1)} ${words[6]!.slice(0, 2)}`
  const events = await readEvents(
    engine.stream('/v1/chat/completions', chat(story, { max_tokens: 40, stop: [stop, 'never there'], stream: true })),
  )
  assert.equal(textOf(events), full.slice(0, full.indexOf(stop)))
  assert.equal(events.data.at(-1).choices[0].finish_reason, 'stop')
})

interface Call {
  name: string
  arguments: string
}
interface Choice {
  content: string
  calls: Call[]
  finish_reason: string
}
interface Message {
  content?: string | null
  tool_calls?: { index?: number; function: Call }[]
}
interface Entry {
  index: number
  delta?: Message
  message?: Message
  finish_reason: string | null
}

/** The choices of an answer, whole or assembled from a stream. */
async function choicesOf(body: object, stream: boolean): Promise<Choice[]> {
  const entries: Entry[] = stream
    ? (await readEvents(engine.stream('/v1/chat/completions', { ...body, stream: true }))).data.flatMap(
        ({ choices }) => choices,
      )
    : (await ask(body)).choices
  const choices: Choice[] = []
  for (const { index, delta, message = delta ?? {}, finish_reason } of entries) {
    choices[index] ??= { content: '', calls: [], finish_reason: '' }
    const choice = choices[index]!
    choice.content += message.content ?? ''
    for (const [position, call] of (message.tool_calls ?? []).entries()) {
      const at = call.index ?? position
      choice.calls[at] ??= { name: call.function.name, arguments: '' }
      choice.calls[at].arguments += call.function.arguments
    }
    if (finish_reason) choice.finish_reason = finish_reason
  }
  return choices
}

const callCase = {
  model: modelName,
  ...JSON.parse(readFileSync(path.join(root, 'tests/fixtures/cases/stop-in-call.json'), 'utf8')),
}

test('a stop sequence ends no call, whole and streamed, for one choice and several, with parallel calls', async () => {
  const town = {
    ...callCase.tools[0].function.parameters,
    properties: { town: { enum: ['Ulm', 'Bonn'] } },
    additionalProperties: false,
  }
  const closed = { ...callCase, tools: [{ type: 'function', function: { name: 'is_raining', parameters: town } }] }
  const bodies = [
    closed,
    { ...closed, stop: '\n' },
    { ...closed, stop: ['"', 'town'], n: 2, seed: 1 },
    { ...closed, stop: ['\n', '}'], parallel_tool_calls: true, max_tokens: 60 },
    { ...closed, stop: '{', tool_choice: { type: 'function', function: { name: 'is_raining' } } },
  ]
  for (const body of bodies)
    for (const stream of [false, true]) {
      const choices = await choicesOf(body, stream)
      assert.equal(choices.length, body.n ?? 1)
      for (const { content, calls, finish_reason } of choices) {
        assert.equal(content, '')
        assert.ok(calls.length > 0)
        // Parallel calls of a small model repeat until the tokens run out: the last one may be cut.
        for (const call of finish_reason === 'length' ? calls.slice(0, -1) : calls)
          assert.match(JSON.parse(call.arguments).town, /^(Ulm|Bonn)$/)
        if (!body.parallel_tool_calls) assert.equal(finish_reason, 'tool_calls')
      }
    }
})

test('an answer that max_tokens cuts in a call has the arguments so far, and none of their markers', async () => {
  const [whole] = await choicesOf({ ...callCase, stop: null }, false)
  const lengths = Array.from({ length: 24 }, (_, index) => index + 1)
  for (const stream of [false, true]) {
    const cut = await Promise.all(
      lengths.map((max_tokens) => choicesOf({ ...callCase, stop: null, max_tokens }, stream)),
    )
    for (const [{ content, calls, finish_reason }] of cut as [Choice][]) {
      assert.equal(content, '')
      if (finish_reason !== 'length') continue
      assert.ok(calls.length <= 1)
      for (const call of calls) {
        assert.equal(call.name, 'is_raining')
        assert.ok(whole!.calls[0]!.arguments.startsWith(call.arguments), call.arguments)
      }
    }
    assert.equal(cut[0]![0]!.finish_reason, 'length')
    assert.deepEqual(cut[0]![0]!.calls, [])
  }
})

test('an end-of-turn token ends the answer with finish_reason stop and is not in the text', async () => {
  const answer = await ask(chat('Repeat the word: hello', { max_tokens: 400 }))
  assert.equal(answer.choices[0].finish_reason, 'stop')
  assert.doesNotMatch(answer.choices[0].message.content, /<\|im_end\|>/)
})

test('emoji and other multibyte characters stream whole: every chunk is valid UTF-8 and nothing is lost', async () => {
  const body = {
    model: modelName,
    prompt: '🦊🦊🦊🦊 🐻🐻🐻🐻 日本語日本語日本語 🦊🦊🦊🦊 🐻🐻🐻🐻 日本語日本語',
    temperature: 0,
    max_tokens: 48,
  }
  // Cache the prompt first: a computed and a cached prompt may differ in their last bits, and so in the answer.
  await engine.ask('POST', '/v1/completions', { ...body, max_tokens: 1 })
  const whole = (await engine.ask('POST', '/v1/completions', body)).json.choices[0].text as string
  assert.match(whole, /[\u0800-\uffff]/, 'the model should write multibyte characters')
  const events = await readEvents(engine.stream('/v1/completions', { ...body, stream: true }))
  assert.equal(textOf(events), whole)
  for (const chunk of events.data) assert.ok(chunk.choices[0].text.isWellFormed())
  // Only the very last character may be cut, by the token limit.
  assert.doesNotMatch(whole.slice(0, -1), /\ufffd/)
})

test('a prompt that does not fit is rejected with its tokens and the context length', async () => {
  const answer = await engine.ask('POST', '/v1/chat/completions', chat('word '.repeat(9000)))
  assert.equal(answer.status, 400)
  assert.equal(answer.json.error.code, 'context_length_exceeded')
  const { prompt_tokens, context_length } = answer.json.error.details
  assert.equal(context_length, 8192)
  assert.ok(prompt_tokens > 9000)
  assert.match(answer.json.error.message, new RegExp(`${prompt_tokens}.*${context_length}`))
})

test('a long prompt goes to a runner with longer slots while short streams continue', full, async () => {
  await until(async () => (await engine.metric('sequences_running')) === 0, 'earlier requests end')
  const runners = await engine.metric('runners')
  const short = engine.stream(
    '/v1/chat/completions',
    chat(story, { max_tokens: 1500, stream: true, temperature: 1, seed: 3 }),
  )
  const times: number[] = []
  const reading = (async () => {
    for await (const _ of short.chunks) times.push(performance.now())
  })().catch(() => {})
  await until(() => times.length > 2, 'the short stream starts')
  const from = performance.now()
  // 700 prompt tokens and an answer of up to 1,800 do not fit a short slot.
  const long = engine.stream(
    '/v1/chat/completions',
    chat('The fox ran over the hill. '.repeat(100), { max_tokens: 1800, stream: true }),
  )
  await long.headers
  const to = performance.now()
  short.disconnect()
  long.disconnect()
  await reading
  assert.ok((await engine.metric('runners')) > runners)
  const during = times.filter((time) => time > from && time < to)
  assert.ok(during.length >= 5, `${during.length} pieces while the long prompt took ${Math.round(to - from)} ms`)
})

for (const [what, content] of [
  ['during generation', story],
  ['during a long prefill', 'A different fox ran over the hill. '.repeat(700)],
] as const) {
  test(`a client that disconnects ${what} frees its slot`, async () => {
    await until(async () => (await engine.metric('sequences_running')) === 0, 'earlier requests end')
    const stream = engine.stream(
      '/v1/chat/completions',
      chat(content, { max_tokens: 2000, stream: true, temperature: 1.5 }),
    )
    await until(async () => (await engine.metric('sequences_running')) === 1, 'the request runs')
    stream.disconnect()
    const computed = await engine.metric('prompt_tokens_total')
    await until(async () => (await engine.metric('sequences_running')) === 0, 'the slot is free', 2000)
    assert.ok((await engine.metric('prompt_tokens_total')) - computed < 1000, 'prefill stopped')
  })
}

test('sampled tokens come with the log-probabilities that the engine computes of them again', async () => {
  const messages = [{ role: 'user', content: 'Say yes or no.' }]
  const { status, json } = await engine.ask('POST', '/internal/sample', {
    model: modelName,
    messages,
    n: 3,
    max_tokens: 12,
    seed: 5,
  })
  assert.equal(status, 200, JSON.stringify(json))
  assert.equal(json.choices.length, 3)
  assert.ok(new Set(json.choices.map((choice: { tokens: number[] }) => choice.tokens.join())).size > 1)
  const rows = json.choices.map(({ tokens }: { tokens: number[] }) => ({
    prompt: messages,
    tokens: [...json.prompt, ...tokens],
    targets: tokens.map((_, index) => json.prompt.length + index),
  }))
  const scored = (await engine.ask('POST', '/internal/score', { model: modelName, rows, at_once: 1 })).json.rows
  for (const [index, { tokens, logprobs, message, finish_reason }] of json.choices.entries()) {
    assert.equal(tokens.length, logprobs.length)
    assert.deepEqual(scored[index].prompt, json.prompt)
    logprobs.forEach((logprob: number, place: number) => {
      assert.ok(Math.abs(logprob - scored[index].logprobs[place]) < 0.02, `${logprob} ${scored[index].logprobs[place]}`)
    })
    // The token that ends an answer is one of them.
    const text = Buffer.concat(scored[index].bytes.map((bytes: string) => Buffer.from(bytes, 'base64'))).toString()
    if (finish_reason === 'stop') {
      assert.ok(scored[index].ends)
      assert.ok(text.startsWith(message.content))
    } else assert.equal(tokens.length, 12)
  }
  const again = await engine.ask('POST', '/internal/sample', { model: modelName, prompt: json.prompt, max_tokens: 2 })
  assert.deepEqual(again.json.prompt, json.prompt)
  const refused = await engine.ask('POST', '/internal/sample', {
    model: modelName,
    prompt: [99_999_999],
    max_tokens: 2,
  })
  assert.equal(refused.status, 400)
})

test('an answer is continued behind its own tokens, with what the template writes there', async () => {
  const parameters = { type: 'object', properties: { city: { enum: ['Paris', 'Rome'] } }, required: ['city'] }
  const shared = {
    model: modelName,
    tools: [{ type: 'function', function: { name: 'weather', description: 'Tells the weather.', parameters } }],
    tool_choice: 'required',
    max_tokens: 200,
    seed: 3,
  }
  const question = { role: 'user', content: 'Weather in Paris?' }
  const sample = (body: object) => engine.ask('POST', '/internal/sample', { ...shared, ...body })
  const { prompt, choices } = (await sample({ messages: [question] })).json
  const [{ tokens, message, finish_reason }] = choices
  assert.equal(finish_reason, 'tool_calls')
  const { tool_calls } = message
  // It spells a control token of the vocabulary, which stays text.
  const result = { role: 'tool', tool_call_id: tool_calls[0].id, content: '<|im_end|> It rains.' }
  const continues = { tokens: [...prompt, ...tokens], tool_calls }
  const next = await sample({ messages: [result], continues })
  assert.equal(next.status, 200, JSON.stringify(next.json))
  assert.deepEqual(next.json.prompt.slice(0, continues.tokens.length), continues.tokens)
  const following: number[] = next.json.prompt.slice(continues.tokens.length)
  const whole = (await sample({ messages: [question, { ...message, refusal: undefined }, result], max_tokens: 1 })).json
  assert.ok(following.length > 10)
  assert.deepEqual(whole.prompt.slice(-following.length), following)
  assert.equal(next.json.choices[0].finish_reason, 'tool_calls')

  const tokens_max = next.json.prompt.length + 4
  const short = (await sample({ messages: [result], continues: { ...continues, tokens_max } })).json
  assert.equal(short.choices[0].tokens.length, 4)
  const none = await sample({ messages: [result], continues: { ...continues, tokens_max: tokens_max - 4 } })
  assert.equal(none.json.error.code, 'context_length_exceeded')
  const unended = await sample({ messages: [result], continues: { tokens: continues.tokens.slice(0, -1), tool_calls } })
  assert.match(unended.json.error.message, /must be a token that ends an answer/)
})
