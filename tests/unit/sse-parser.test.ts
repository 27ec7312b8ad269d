// The SSE parser: how it reads events of our engine.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createSseParser } from '../../server/features/inference/gateway/sse-parser.ts'

const event = (content: string) => `data: {"choices":[{"index":0,"delta":{"content":"${content}"}}]}\n\n`
const feed = (parser: ReturnType<typeof createSseParser>, text: string) =>
  parser.feed(Buffer.from(text))?.toString('utf8') ?? ''

test('events split at any byte, with extra empty lines between, are passed whole and counted', () => {
  const sent = `${event('a')}\n: keepalive\n\n${event('ä')}data: [DONE]\n\n`
  const bytes = Buffer.from(sent)
  for (let cut = 1; cut < bytes.length; cut++) {
    const parser = createSseParser(false)
    const passed = [bytes.subarray(0, cut), bytes.subarray(cut)].map((piece) => parser.feed(piece) ?? Buffer.of())
    assert.equal(Buffer.concat(passed).toString('utf8').replaceAll('\n\n\n', '\n\n'), sent.replaceAll('\n\n\n', '\n\n'))
    assert.deepEqual([parser.tokens, parser.done], [2, true])
  }
})

test('the final usage is read, and dropped unless the client requested it', () => {
  const usage =
    'data: ' +
    '{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}}\n\n'
  for (const keepUsage of [true, false]) {
    const parser = createSseParser(keepUsage)
    assert.equal(feed(parser, event('a') + usage), event('a') + (keepUsage ? usage : ''))
    assert.deepEqual(parser.usage(), { prompt_tokens: 9, completion_tokens: 2, cached_tokens: 4 })
  }
})

test('an error event ends the stream', () => {
  const parser = createSseParser(false)
  assert.equal(
    feed(parser, `data: {"error":{"message":"died"}}\n\n${event('a')}`),
    'data: {"error":{"message":"died"}}\n\n',
  )
  assert.ok(parser.failed)
})
