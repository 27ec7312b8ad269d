// The SSE parser: how it reads and rewrites events of our engine and of upstreams.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createSseParser } from '../../server/inference/gateway/sse-parser.ts'

const upstream = {
  keepUsage: false,
  keepChunkUsage: false,
  renameModelTo: 'mine',
  fromUpstream: true,
  addedChunkUsage: true,
}
const piece = (content: string, more = '') =>
  `{"model":"theirs","choices":[{"index":0,"delta":{"content":"${content}"}}]${more}}`
const event = (content: string, more = '') => `data: ${piece(content, more)}\n\n`
const mine = (content: string, more = '') => event(content, more).replace('theirs', 'mine')
const chunkUsage = ',"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}'
const feed = (parser: ReturnType<typeof createSseParser>, text: string) =>
  parser.feed(Buffer.from(text))?.toString('utf8') ?? ''

test('extra empty lines between events are skipped', () => {
  const parser = createSseParser(upstream)
  assert.equal(feed(parser, `${event('a')}\n`).trim(), mine('a').trim())
  assert.equal(
    feed(parser, `\n${event('b')}\n\n\n${event('c')}`)
      .replace(/\n{3,}/g, '\n\n')
      .trim(),
    `${mine('b')}${mine('c')}`.trim(),
  )
  assert.equal(feed(parser, '\n\n\n').trim(), '')
  feed(parser, '\n\ndata: [DONE]\n\n')
  assert.deepEqual([parser.tokens, parser.done], [3, true])
  const local = createSseParser({ ...upstream, renameModelTo: undefined, fromUpstream: false })
  feed(local, `${event('a')}\n`)
  feed(local, '\ndata: [DONE]\n\n')
  assert.deepEqual([local.tokens, local.done], [1, true])
})

test('data is read without the optional space, among other fields and across several lines', () => {
  const spellings = [
    `data:${piece('a')}\n\n`,
    `event: message\nid: 7\ndata: ${piece('a')}\n\n`,
    `: comment\ndata:${piece('a')}\n\n`,
    event('a').replace(',"choices"', ',\ndata: "choices"'),
  ]
  for (const spelling of spellings) {
    const parser = createSseParser(upstream)
    const [start, rest] = feed(parser, spelling).split('data: ')
    assert.deepEqual([start, JSON.parse(rest!)], ['', JSON.parse(piece('a').replace('theirs', 'mine'))], spelling)
    feed(parser, 'data:[DONE]\n\n')
    assert.deepEqual([parser.tokens, parser.done], [1, true], spelling)
  }
  const parser = createSseParser(upstream)
  assert.equal(feed(parser, ': keepalive\n\nevent: ping\n\n'), ': keepalive\n\nevent: ping\n\n')
  feed(parser, 'event: error\ndata:{"error":{"message":"died"}}\n\n')
  assert.ok(parser.failed)
})

test('usage in chunks is always read, and removed only if this service requested it and the client did not', () => {
  const used = { prompt_tokens: 9, completion_tokens: 2, cached_tokens: 4 }
  const withMetrics = `${chunkUsage},"metrics":{"a":{}}`
  for (const [options, given, passed] of [
    [upstream, chunkUsage, ''],
    [{ ...upstream, keepChunkUsage: true }, chunkUsage, chunkUsage],
    [{ ...upstream, addedChunkUsage: false }, chunkUsage, chunkUsage],
    [upstream, withMetrics, ',"metrics":{"a":{}}'],
    [{ ...upstream, addedChunkUsage: false }, withMetrics, withMetrics],
  ] as const) {
    const parser = createSseParser(options)
    assert.equal(feed(parser, event('a', given)), mine('a', passed))
    assert.equal(feed(parser, event('b', ',"usage":null')), mine('b', ',"usage":null'))
    assert.deepEqual(parser.usage(), used)
  }
})

test('every event gets the client’s model name, also when the upstream’s name changes mid-stream', () => {
  const parser = createSseParser(upstream)
  assert.equal(feed(parser, event('a') + event('b').replace('theirs', 'others')), mine('a') + mine('b'))
})
