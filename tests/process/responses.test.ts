// OpenAI's Responses API, with OpenAI's own client: whole, streamed, with tools, structured, and turn by turn.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { before, test } from 'node:test'
import OpenAI from 'openai'
import { root } from '../../lib/root.ts'
import { appOfTests } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'

const app = appOfTests()
let openai: OpenAI
let other: OpenAI
before(async () => {
  await app.started
  openai = new OpenAI({ baseURL: app.url, apiKey: app.key, maxRetries: 0 })
  other = new OpenAI({ baseURL: app.url, apiKey: app.otherKey, maxRetries: 0 })
})

const refused = (promise: Promise<unknown>, status: number, code: string, param: string | null) =>
  assert.rejects(promise, (error: InstanceType<typeof OpenAI.APIError>) => {
    assert.deepEqual([error.status, error.code, error.param], [status, code, param], error.message)
    return true
  })
const base = { model: tiny, temperature: 0, max_output_tokens: 8 }
const weather = {
  type: 'function' as const,
  name: 'weather',
  description: 'The weather of a city.',
  parameters: {
    type: 'object',
    properties: { city: { enum: ['Oslo', 'Lima'] } },
    required: ['city'],
    additionalProperties: false,
  },
  strict: true,
}
const digits = { type: 'grammar' as const, syntax: 'regex' as const, definition: '[0-9]{3}' }
const colour = {
  type: 'json_schema' as const,
  name: 'colour',
  schema: {
    type: 'object',
    properties: { colour: { enum: ['red', 'blue'] } },
    required: ['colour'],
    additionalProperties: false,
  },
}

test('an answer is whole, metered and kept until it is deleted', async () => {
  const response = await openai.responses.create({
    ...base,
    instructions: 'Be short.',
    input: 'hi',
    metadata: { a: 'b' },
  })
  assert.deepEqual(
    [response.object, response.model, response.instructions, response.metadata],
    ['response', tiny, 'Be short.', { a: 'b' }],
  )
  assert.equal(response.usage!.total_tokens, response.usage!.input_tokens + response.usage!.output_tokens)
  const [item] = response.output
  assert.ok(item?.type === 'message' && item.content[0]!.type === 'output_text')
  assert.equal(response.output_text, item.content[0]!.text)
  assert.deepEqual(
    [response.status, response.incomplete_details],
    response.usage!.output_tokens < 8 ? ['completed', null] : ['incomplete', { reason: 'max_output_tokens' }],
  )
  const { output_text: _, ...stored } = await openai.responses.retrieve(response.id)
  const { output_text: __, ...sent } = response
  assert.deepEqual(stored, sent)
  const items = await openai.responses.inputItems.list(response.id)
  assert.deepEqual(
    items.data.map((item) => item.type === 'message' && item.content),
    [[{ type: 'input_text', text: 'hi' }]],
  )
  await refused(other.responses.retrieve(response.id), 404, 'response_not_found', 'response_id')
  await refused(other.responses.delete(response.id), 404, 'response_not_found', 'response_id')
  await openai.responses.delete(response.id)
  await refused(openai.responses.retrieve(response.id), 404, 'response_not_found', 'response_id')
  const unstored = await openai.responses.create({ ...base, input: 'hi', store: false })
  await refused(openai.responses.retrieve(unstored.id), 404, 'response_not_found', 'response_id')
})

test('a stream has the same answer, as events that the client accumulates', async () => {
  const whole = await openai.responses.create({ ...base, input: 'hi', store: false })
  const stream = openai.responses.stream({ ...base, input: 'hi' })
  const types: string[] = []
  let text = ''
  let expected = 0
  for await (const event of stream) {
    types.push(event.type)
    assert.equal(event.sequence_number, expected++)
    if (event.type === 'response.output_text.delta') text += event.delta
  }
  const final = await stream.finalResponse()
  assert.equal(text, whole.output_text)
  assert.equal(final.output_text, whole.output_text)
  assert.deepEqual(final.usage!.output_tokens, whole.usage!.output_tokens)
  assert.deepEqual(types.slice(0, 4), [
    'response.created',
    'response.in_progress',
    'response.output_item.added',
    'response.content_part.added',
  ])
  assert.deepEqual(types.slice(-4), [
    'response.output_text.done',
    'response.content_part.done',
    'response.output_item.done',
    `response.${whole.status}`,
  ])
  assert.equal((await openai.responses.retrieve(final.id)).output_text, text)
})

test('a conversation continues from a stored response, with the same prompt as one that is sent whole', async () => {
  const first = await openai.responses.create({ ...base, input: 'one' })
  const second = await openai.responses.create({ ...base, previous_response_id: first.id, input: 'two' })
  const third = await openai.responses.create({ ...base, previous_response_id: second.id, input: 'three' })
  const whole = await openai.chat.completions.create({
    model: tiny,
    temperature: 0,
    max_tokens: 8,
    messages: [
      { role: 'user', content: 'one' },
      { role: 'assistant', content: first.output_text },
      { role: 'user', content: 'two' },
      { role: 'assistant', content: second.output_text },
      { role: 'user', content: 'three' },
    ],
  })
  assert.equal(third.usage!.input_tokens, whole.usage!.prompt_tokens)
  assert.equal(third.output_text, whole.choices[0]!.message.content)
  const items = (await openai.responses.inputItems.list(third.id, { order: 'asc', limit: 2 })).data
  assert.equal(items.length, 2)
  const none = { ...base, input: 'x', previous_response_id: 'resp_none' }
  await refused(openai.responses.create(none), 400, 'previous_response_not_found', 'previous_response_id')
  await refused(
    other.responses.create({ ...none, previous_response_id: first.id }),
    400,
    'previous_response_not_found',
    'previous_response_id',
  )
})

test('tools are called, whole and streamed, and their results answered', async () => {
  const request = {
    ...base,
    max_output_tokens: 64,
    input: 'Weather in Oslo?',
    tools: [weather],
    tool_choice: 'required' as const,
    parallel_tool_calls: false,
  }
  const response = await openai.responses.create(request)
  const call = response.output.find((item) => item.type === 'function_call')!
  assert.equal(call.name, 'weather')
  assert.match(JSON.parse(call.arguments).city, /^(Oslo|Lima)$/)
  const stream = openai.responses.stream(request)
  let written = ''
  for await (const event of stream) if (event.type === 'response.function_call_arguments.delta') written += event.delta
  const streamed = (await stream.finalResponse()).output.find((item) => item.type === 'function_call')!
  assert.deepEqual([streamed.arguments, streamed.name], [written, 'weather'])
  const answer = await openai.responses.create({
    ...base,
    previous_response_id: response.id,
    tools: [weather],
    input: [{ type: 'function_call_output', call_id: call.call_id, output: '12 degrees' }],
  })
  assert.ok(answer.usage!.input_tokens > response.usage!.input_tokens)
})

test('functions are kept and custom tools work; hosted tools are left out, and the response says so', async () => {
  const request = {
    ...base,
    ...JSON.parse(readFileSync(path.join(root, 'tests/fixtures/cases/responses-other-tools.json'), 'utf8')),
  } as OpenAI.Responses.ResponseCreateParamsNonStreaming
  const plain = (await openai.responses.create(request)) as OpenAI.Responses.Response & {
    ignored_tools: { type: string; reason: string }[]
  }
  assert.deepEqual(
    plain.tools.map((tool) => (tool as { name: string }).name),
    ['shell', 'apply_patch'],
  )
  assert.deepEqual(
    plain.ignored_tools.map(({ type }) => type),
    ['web_search', 'namespace'],
  )
  assert.match(plain.ignored_tools[0]!.reason, /Run it in your program/)

  const members = [weather, { type: 'custom' as const, name: 'note', format: digits }]
  const tools = [...request.tools!, { type: 'namespace' as const, name: 'home', description: 'x', tools: members }]
  const called = async (tool_choice: object) => {
    const body = { ...request, tools, tool_choice, parallel_tool_calls: false, max_output_tokens: 64 } as typeof request
    const whole = await openai.responses.create(body)
    const stream = openai.responses.stream({ ...body, stream: true } as never)
    let input = ''
    for await (const event of stream) if (event.type === 'response.custom_tool_call_input.delta') input += event.delta
    const item = (await stream.finalResponse()).output.at(-1)!
    return { whole, item, input }
  }
  const { item: named } = await called({ type: 'function', name: 'weather', namespace: 'home' })
  assert.ok(named.type === 'function_call')
  assert.deepEqual([named.name, named.namespace], ['weather', 'home'])
  const allowed = [{ type: 'function', name: 'weather', namespace: 'home' }, { type: 'web_search' }]
  const { item: only } = await called({ type: 'allowed_tools', mode: 'required', tools: allowed })
  assert.ok(only.type === 'function_call')
  assert.deepEqual([only.name, only.namespace], ['weather', 'home'])
  const unknown = called({ type: 'allowed_tools', mode: 'auto', tools: [{ type: 'function', name: 'other' }] })
  await refused(unknown, 400, 'invalid_request', 'tool_choice.tools')
  const { whole, item, input } = await called({ type: 'custom', name: 'note', namespace: 'home' })
  assert.ok(item.type === 'custom_tool_call')
  assert.deepEqual([item.name, item.namespace, item.input], ['note', 'home', input])
  assert.match(input, /^[0-9]{3}$/)
  const call = whole.output.find((item) => item.type === 'custom_tool_call')!
  const answer = await openai.responses.create({
    ...request,
    tools,
    previous_response_id: whole.id,
    input: [{ type: 'custom_tool_call_output', call_id: call.call_id, output: 'noted' }],
  })
  assert.ok(answer.usage!.input_tokens > whole.usage!.input_tokens)
})

test('what is stored is what the model reads, and what is left of a conversation can be read', async () => {
  const item = { type: 'message' as const, role: 'user' as const, content: 'hi', more: 'x'.repeat(1000) }
  const reasoning = { type: 'reasoning' as const, id: 'rs_1', summary: [], encrypted_content: 'x'.repeat(1000) }
  const first = await openai.responses.create({ ...base, input: [reasoning, item] as never })
  const [stored, ...others] = (await openai.responses.inputItems.list(first.id)).data
  assert.deepEqual({ ...stored, id: '' }, { id: '', type: 'message', role: 'user', content: 'hi' })
  assert.deepEqual(others, [])
  const second = await openai.responses.create({ ...base, previous_response_id: first.id, input: 'and' })
  const third = await openai.responses.create({ ...base, previous_response_id: second.id, input: 'now' })
  await openai.responses.delete(first.id)
  const goOn = openai.responses.create({ ...base, previous_response_id: third.id, input: 'x' })
  await assert.rejects(goOn, { code: 'previous_response_not_found', message: new RegExp(`${third.id}.*${first.id}`) })
  const left = (await openai.responses.inputItems.list(third.id)).data
  assert.equal(left.length, 1, 'its own')
})

test('a conversation cannot grow without end', async () => {
  const { id } = await openai.responses.create({ ...base, input: 'hi' })
  const { db } = app
  await db
    .updateTable('responses')
    .set({ input_json: `[${' '.repeat(9_000_000)}]` })
    .where('id', '=', id)
    .execute()
  const goOn = openai.responses.create({ ...base, previous_response_id: id, input: 'x' })
  await refused(goOn, 400, 'context_length_exceeded', 'previous_response_id')
})

test('a structured answer has the form of its schema', async () => {
  const response = await openai.responses.create({
    ...base,
    max_output_tokens: 64,
    input: 'A colour?',
    text: { format: colour },
  })
  assert.match(JSON.parse(response.output_text).colour, /^(red|blue)$/)
})

test('what is not offered is refused with the name of its field', async () => {
  const create = (more: object) => openai.responses.create({ ...base, input: 'hi', ...more } as never)
  const unsupported: [object, string, string][] = [
    [{ tools: [{ type: 'web_search' }], tool_choice: 'required' }, 'invalid_request', 'tool_choice'],
    [{ tools: [weather], tool_choice: { type: 'web_search' } }, 'invalid_request', 'tool_choice.type'],
    [{ tools: [{ type: 'web_search' }, { ...weather, name: 'no spaces' }] }, 'invalid_request', 'tools.1.name'],
    [{ tools: [{ type: 'custom' }] }, 'invalid_request', 'tools.0.name'],
    [{ background: true }, 'parameter_not_supported', 'background'],
    [{ conversation: 'conv_1' }, 'parameter_not_supported', 'conversation'],
    [{ prompt: { id: 'x' } }, 'parameter_not_supported', 'prompt'],
    [{ truncation: 'auto' }, 'parameter_not_supported', 'truncation'],
    [{ include: ['file_search_call.results'] }, 'parameter_not_supported', 'include'],
    [{ max_output_tokens: 0 }, 'invalid_request', 'max_output_tokens'],
    [{ input: [] }, 'invalid_request', 'input'],
    [{ max_tokens: 5 }, 'parameter_not_supported', 'max_tokens'],
    [{ response_format: { type: 'json_object' } }, 'parameter_not_supported', 'response_format'],
    [{ stop: ['x'] }, 'parameter_not_supported', 'stop'],
    [{ reasoning: 5 }, 'invalid_request', 'reasoning'],
    [{ tool_choice: 'required' }, 'invalid_request', 'tool_choice'],
    [{ tools: [weather], tool_choice: { type: 'function', name: 'other' } }, 'invalid_request', 'tool_choice.name'],
    [{ text: { format: { ...colour, name: 'a b' } } }, 'invalid_request', 'text.format.name'],
    [{ input: [{ type: 'item_reference', id: 'x' }] }, 'invalid_request', 'input.0.type'],
    [{ tools: [{ ...weather, name: 'no spaces' }] }, 'invalid_request', 'tools.0.name'],
    [{ input: 'long '.repeat(5000) }, 'context_length_exceeded', 'input'],
  ]
  for (const [more, code, param] of unsupported) await refused(create(more), 400, code, param)
  await refused(create({ model: 'nobody/none' }), 404, 'model_not_found', 'model')
  await refused(create({ model: 'nobody/none', stream: true }), 404, 'model_not_found', 'model')
})
