import assert from 'node:assert/strict'
import { test } from 'node:test'
import type OpenAI from 'openai'
import { zodResponseFormat } from 'openai/helpers/zod'
import { z } from 'zod'
import { client, model } from './support/service.ts'

const weather: OpenAI.ChatCompletionFunctionTool = {
  type: 'function',
  function: {
    name: 'get_weather',
    description: 'Tells the weather of a city.',
    strict: true,
    parameters: {
      type: 'object',
      properties: {
        city: { type: 'string', enum: ['Paris', 'Oslo'] },
        days: { type: 'integer', minimum: 1, maximum: 7 },
      },
      required: ['city', 'days'],
      additionalProperties: false,
    },
  },
}
const time: OpenAI.ChatCompletionFunctionTool = {
  type: 'function',
  function: {
    name: 'get_time',
    description: 'Tells the time of a zone.',
    strict: true,
    parameters: {
      type: 'object',
      properties: { zone: { type: 'string', enum: ['UTC', 'CET'] } },
      required: ['zone'],
      additionalProperties: false,
    },
  },
}
const Weather = z.strictObject({ city: z.enum(['Paris', 'Oslo']), days: z.int().min(1).max(7) })
const Time = z.strictObject({ zone: z.enum(['UTC', 'CET']) })
const messages: OpenAI.ChatCompletionMessageParam[] = [
  { role: 'user', content: 'What is the weather in Paris for 2 days?' },
]
const base = { model, messages, tools: [weather, time], max_tokens: 200, temperature: 0 }

/** Fails unless a call is one of the offered tools with valid arguments. */
function checkCall(call: { id?: string; type?: string; function?: { name?: string; arguments?: string } }) {
  assert.equal(call.type, 'function')
  assert.match(call.id ?? '', /./)
  const schema = call.function!.name === 'get_weather' ? Weather : Time
  assert.ok(['get_weather', 'get_time'].includes(call.function!.name!))
  schema.parse(JSON.parse(call.function!.arguments!))
}

test('tool_choice required: at least one call with valid arguments', async () => {
  const answer = await client.chat.completions.create({ ...base, tool_choice: 'required' })
  const [choice] = answer.choices
  assert.equal(choice!.finish_reason, 'tool_calls')
  assert.ok(choice!.message.tool_calls!.length >= 1)
  for (const call of choice!.message.tool_calls!) checkCall(call as never)
})

test('a named tool choice calls that tool', async () => {
  const answer = await client.chat.completions.create({
    ...base,
    tool_choice: { type: 'function', function: { name: 'get_time' } },
  })
  const [call] = answer.choices[0]!.message.tool_calls as OpenAI.ChatCompletionMessageFunctionToolCall[]
  assert.equal(call!.function.name, 'get_time')
  Time.parse(JSON.parse(call!.function.arguments))
})

test('tool_choice none gives text and no call; auto gives either', async () => {
  const none = await client.chat.completions.create({ ...base, max_tokens: 30, tool_choice: 'none' })
  assert.equal(none.choices[0]!.message.tool_calls, undefined)
  assert.equal(typeof none.choices[0]!.message.content, 'string')
  const auto = await client.chat.completions.create({ ...base, tool_choice: 'auto' })
  const { message, finish_reason } = auto.choices[0]!
  if (message.tool_calls) assert.equal(finish_reason, 'tool_calls')
  else assert.equal(typeof message.content, 'string')
  for (const call of message.tool_calls ?? []) checkCall(call as never)
})

test('parallel_tool_calls false: at most one call', async () => {
  const answer = await client.chat.completions.create({ ...base, tool_choice: 'required', parallel_tool_calls: false })
  assert.equal(answer.choices[0]!.message.tool_calls!.length, 1)
})

test('streamed deltas: index on each, id and name in the first only; the helper collects the arguments', async () => {
  const started = new Set<number>()
  const gathered = new Map<number, string>()
  let reason: string | null = null
  for await (const chunk of await client.chat.completions.create({ ...base, tool_choice: 'required', stream: true })) {
    for (const choice of chunk.choices) {
      reason = choice.finish_reason ?? reason
      for (const call of choice.delta.tool_calls ?? []) {
        assert.ok(Number.isInteger(call.index))
        assert.equal(call.id !== undefined, !started.has(call.index), 'an id in the first delta of a call and no other')
        assert.equal(call.function?.name !== undefined, !started.has(call.index))
        started.add(call.index)
        gathered.set(call.index, (gathered.get(call.index) ?? '') + (call.function?.arguments ?? ''))
      }
    }
  }
  assert.equal(reason, 'tool_calls')
  assert.ok(started.size >= 1)
  for (const text of gathered.values()) JSON.parse(text)

  const stream = client.chat.completions.stream({ ...base, tool_choice: 'required' })
  const final = await stream.finalChatCompletion()
  for (const call of final.choices[0]!.message.tool_calls!) checkCall(call as never)
})

test('tool results are accepted, with null content in the call’s message', async () => {
  const call = {
    id: 'call_1',
    type: 'function' as const,
    function: { name: 'get_weather', arguments: '{"city":"Paris","days":2}' },
  }
  const answer = await client.chat.completions.create({
    ...base,
    max_tokens: 12,
    tool_choice: 'none',
    messages: [
      ...messages,
      { role: 'assistant', content: null, tool_calls: [call] },
      { role: 'tool', tool_call_id: 'call_1', content: 'Sunny, 21 degrees.' },
    ],
  })
  assert.equal(typeof answer.choices[0]!.message.content, 'string')
})

test('runTools runs the called tool and sends its result', async () => {
  const toolArguments: unknown[] = []
  const runner = client.chat.completions.runTools(
    {
      model,
      messages,
      max_tokens: 200,
      temperature: 0,
      // With a named choice the runner returns after one round.
      tool_choice: { type: 'function', function: { name: 'get_weather' } },
      tools: [
        {
          type: 'function',
          function: {
            name: 'get_weather',
            description: 'Tells the weather of a city.',
            parameters: weather.function.parameters as Record<string, unknown>,
            parse: (text: string) => Weather.parse(JSON.parse(text)),
            function: (args: z.infer<typeof Weather>) => {
              toolArguments.push(args)
              return 'Sunny.'
            },
          },
        },
      ],
    },
    { maxChatCompletions: 2 },
  )
  await runner.done()
  assert.ok(toolArguments.length >= 1)
  assert.ok(runner.messages.some((message) => message.role === 'tool' && message.content === 'Sunny.'))
})

const Ticket = z.strictObject({
  urgent: z.boolean(),
  team: z.enum(['billing', 'support']),
  number: z.int().min(0).max(99),
})

test('the parse helper gets an object of its schema, also from a stream', async () => {
  const request = {
    model,
    messages: [{ role: 'user' as const, content: 'My bill 12 is wrong!' }],
    response_format: zodResponseFormat(Ticket, 'ticket'),
    max_tokens: 200,
    temperature: 0,
  }
  const answer = await client.chat.completions.parse(request)
  Ticket.parse(answer.choices[0]!.message.parsed)
  assert.equal(answer.choices[0]!.finish_reason, 'stop')
  const streamed = await client.chat.completions.stream(request).finalChatCompletion()
  Ticket.parse(streamed.choices[0]!.message.parsed)
})

test('json_object gives an object', async () => {
  const answer = await client.chat.completions.create({
    model,
    messages: [{ role: 'user', content: 'Give me {"a": 1} as JSON, nothing else.' }],
    response_format: { type: 'json_object' },
    max_tokens: 300,
    temperature: 0,
  })
  const { message, finish_reason } = answer.choices[0]!
  assert.ok(message.content!.trimStart().startsWith('{'))
  if (finish_reason === 'stop') assert.equal(typeof JSON.parse(message.content!), 'object')
})

test('a truncated answer raises in the parse helper', async () => {
  const Long = z.object({ text: z.string().min(200) })
  await assert.rejects(
    client.chat.completions.parse({
      model,
      messages: [{ role: 'user', content: 'Write a lot.' }],
      response_format: zodResponseFormat(Long, 'long'),
      max_tokens: 5,
    }),
    (error: Error) => error.constructor.name === 'LengthFinishReasonError',
  )
})

test('an unenforceable schema is refused with 400 and its path', async () => {
  await assert.rejects(
    client.chat.completions.create({
      model,
      messages: [{ role: 'user', content: 'Hi' }],
      response_format: {
        type: 'json_schema',
        json_schema: { name: 'x', strict: true, schema: { not: { type: 'string' } } },
      },
    }),
    { status: 400, code: 'schema_not_enforceable' },
  )
})
