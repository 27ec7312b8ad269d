// The events of a response: odd deltas of other servers, and streams that fail.
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { Readable, Writable } from 'node:stream'
import { test } from 'node:test'
import pino from 'pino'
import type { Response } from '../../contract/responses.ts'
import { pipeToClient } from '../../server/inference/gateway/sse-response.ts'
import { createResponseBuilder } from '../../server/inference/responses/events.ts'
import { createResponseStream } from '../../server/inference/responses/stream.ts'
import { newResponse } from '../../server/inference/responses/translate.ts'

const data = (value: object) => `data: ${JSON.stringify(value)}\n\n`
const chunk = (delta: object, finish_reason: string | null = null) => data({ choices: [{ delta, finish_reason }] })

/** The events that a stream of chat chunks becomes, and the responses that were stored. */
async function streamed(...chunks: string[]) {
  const stored: Response[] = []
  const builder = createResponseBuilder(newResponse({ model: 'm', input: 'x' }, 0))
  const stream = createResponseStream(
    builder,
    async () => void stored.push(structuredClone(builder.response)),
    () => 0,
  )
  for (const each of chunks) stream.write(Buffer.from(each))
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
