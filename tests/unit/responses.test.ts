// The events of a response: odd deltas of other servers, and streams that fail.
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { Readable, Writable } from 'node:stream'
import { test } from 'node:test'
import pino from 'pino'
import type { Response } from '../../contract/responses.ts'
import { pipeToClient } from '../../server/features/inference/gateway/sse-response.ts'
import { ResponseBuilder } from '../../server/features/inference/responses/events.ts'
import { createResponseStream } from '../../server/features/inference/responses/stream.ts'
import { responseTools } from '../../server/features/inference/responses/tools.ts'
import { newResponse } from '../../server/features/inference/responses/translate.ts'

const data = (value: object) => `data: ${JSON.stringify(value)}\n\n`
const chunk = (delta: object, finish_reason: string | null = null) => data({ choices: [{ delta, finish_reason }] })

/** The events that a stream of chat chunks becomes, and the responses that were stored. */
async function streamed(...chunks: string[]) {
  const stored: Response[] = []
  const tools = responseTools([{ type: 'custom', name: 'patch' }])
  const builder = new ResponseBuilder(newResponse({ model: 'm', input: 'x' }, tools, 0), tools)
  const stream = createResponseStream(
    builder,
    async () => void stored.push(structuredClone(builder.response)),
    () => 0,
  )
  for (const chunk of chunks) stream.write(Buffer.from(chunk))
  stream.end()
  let text = ''
  for await (const piece of stream) text += piece
  const events = text
    .split('\n\n')
    .filter((event) => event.startsWith('event: '))
    .map((event) => JSON.parse(event.slice(event.indexOf('data: ') + 6)))
  return { events, stored }
}

test('a call whose name comes without arguments has none of these in front', async () => {
  const call = (part: object) => chunk({ tool_calls: [{ index: 0, ...part }] })
  const { events } = await streamed(
    call({ id: 'call_1', function: { name: 'weather' } }),
    call({ function: { arguments: '{"city":' } }),
    data({ object: 'ping' }),
    data({ choices: [{}] }),
    call({ function: { arguments: '"Oslo"}' } }),
    chunk({}, 'tool_calls'),
    'data: [DONE]\n\n',
  )
  const { response } = events.at(-1)
  assert.equal(response.status, 'completed')
  assert.deepEqual([response.output[0].name, response.output[0].arguments], ['weather', '{"city":"Oslo"}'])
})

test('a response cut in a call is incomplete, and so is that call alone', async () => {
  const call = (index: number, part: object) => chunk({ tool_calls: [{ index, ...part }] })
  const { events } = await streamed(
    call(0, { id: 'call_1', function: { name: 'weather', arguments: '{"city": "Oslo"}' } }),
    call(1, { id: 'call_2', function: { name: 'patch', arguments: '{"input": "a\\u00' } }),
    chunk({}, 'length'),
    'data: [DONE]\n\n',
  )
  const { type, response } = events.at(-1)
  assert.equal(type, 'response.incomplete')
  assert.deepEqual([response.status, response.incomplete_details], ['incomplete', { reason: 'max_output_tokens' }])
  assert.deepEqual(
    response.output.map(({ status, arguments: text, input }: Record<string, string>) => [status, text ?? input]),
    [
      ['completed', '{"city": "Oslo"}'],
      ['incomplete', 'a'],
    ],
  )
})

test('the input of a custom tool is text, however its arguments are split', async () => {
  const input = 'line "1"\n\\ \u00e9 🦊\t{}'
  const escaped = JSON.stringify(input).replace('🦊', '\\ud83e\\udd8a').replace('é', '\\u00e9')
  for (const text of [`{"input": ${escaped}}`, ` {\n"input":${escaped} }`, `{"other": 1, "input": ${escaped}}`])
    for (const size of [1, 2, 3, 7, 1000]) {
      const pieces = text.match(new RegExp(`[^]{1,${size}}`, 'g'))!
      const { events } = await streamed(
        chunk({ tool_calls: [{ index: 0, id: 'call_1', function: { name: 'patch', arguments: '' } }] }),
        ...pieces.map((piece) => chunk({ tool_calls: [{ index: 0, function: { arguments: piece } }] })),
        chunk({}, 'tool_calls'),
        'data: [DONE]\n\n',
      )
      const deltas = events.filter(({ type }) => type === 'response.custom_tool_call_input.delta')
      assert.equal(deltas.map(({ delta }) => delta).join(''), input)
      assert.ok(deltas.every(({ delta }) => delta.isWellFormed()))
      assert.equal(events.find(({ type }) => type === 'response.custom_tool_call_input.done').input, input)
      const [item] = events.at(-1).response.output
      assert.deepEqual(
        { ...item, id: '' },
        { type: 'custom_tool_call', id: '', status: 'completed', call_id: 'call_1', name: 'patch', input },
      )
    }
})

test('a stream that fails closes what it began, and is stored as it is', async () => {
  const { events, stored } = await streamed(
    chunk({ content: 'half of' }),
    data({ error: { code: 'engine_failed', message: 'The engine ended.' } }),
  )
  assert.deepEqual(
    events.slice(-4).map(({ type }) => type),
    ['response.output_text.done', 'response.content_part.done', 'response.output_item.done', 'response.failed'],
  )
  assert.equal(events.at(-1).response.output[0].status, 'incomplete')
  assert.deepEqual(
    stored.map(({ status }) => status),
    ['failed'],
  )
})

for (const [when, count] of [
  ['in the middle', 1000],
  ['near the end', 1],
] as const)
  test(`a client that stops reading ${when} is disconnected`, async () => {
    const client = new Writable({ highWaterMark: 100, write() {} })
    const events = Readable.from(Array.from({ length: count }, () => Buffer.alloc(1000)))
    pipeToClient(events, client, pino({ enabled: false }), 20)
    await once(client, 'close')
    assert.ok(client.destroyed && events.destroyed)
  })
