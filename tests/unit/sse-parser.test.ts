// What is made of the frames of an event stream as they pass, whatever server wrote them.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { watchStream } from '../../server/inference/gateway/sse-parser.ts'

const foreign = { keepUsage: false, keepRunning: false, rename: 'mine', foreign: true, askedRunning: true }
const piece = (content: string, more = '') =>
  `{"model":"theirs","choices":[{"index":0,"delta":{"content":"${content}"}}]${more}}`
const frame = (content: string, more = '') => `data: ${piece(content, more)}\n\n`
const mine = (content: string, more = '') => frame(content, more).replace('theirs', 'mine')
const runningUsage = ',"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}'
const take = (watch: ReturnType<typeof watchStream>, text: string) =>
  watch.take(Buffer.from(text))?.toString('utf8') ?? ''

test('further empty lines between frames neither stop the stream nor hide the frame after them', () => {
  const watch = watchStream(foreign)
  assert.equal(take(watch, `${frame('a')}\n`).trim(), mine('a').trim())
  assert.equal(
    take(watch, `\n${frame('b')}\n\n\n${frame('c')}`)
      .replace(/\n{3,}/g, '\n\n')
      .trim(),
    `${mine('b')}${mine('c')}`.trim(),
  )
  assert.equal(take(watch, '\n\n\n').trim(), '')
  take(watch, '\n\ndata: [DONE]\n\n')
  assert.deepEqual([watch.tokens, watch.done], [3, true])
  const own = watchStream({ ...foreign, rename: undefined, foreign: false })
  take(own, `${frame('a')}\n`)
  take(own, '\ndata: [DONE]\n\n')
  assert.deepEqual([own.tokens, own.done], [1, true])
})

test('data is found without its space, beside other fields and in more than one line', () => {
  const spellings = [
    `data:${piece('a')}\n\n`,
    `event: message\nid: 7\ndata: ${piece('a')}\n\n`,
    `: comment\ndata:${piece('a')}\n\n`,
    frame('a').replace(',"choices"', ',\ndata: "choices"'),
  ]
  for (const spelling of spellings) {
    const watch = watchStream(foreign)
    const [start, rest] = take(watch, spelling).split('data: ')
    assert.deepEqual([start, JSON.parse(rest!)], ['', JSON.parse(piece('a').replace('theirs', 'mine'))], spelling)
    take(watch, 'data:[DONE]\n\n')
    assert.deepEqual([watch.tokens, watch.done], [1, true], spelling)
  }
  const watch = watchStream(foreign)
  assert.equal(take(watch, ': keepalive\n\nevent: ping\n\n'), ': keepalive\n\nevent: ping\n\n')
  take(watch, 'event: error\ndata:{"error":{"message":"died"}}\n\n')
  assert.ok(watch.failed)
})

test('a running usage is known whether or not it is passed on, and is taken out only where it was asked for by this service', () => {
  const used = { prompt_tokens: 9, completion_tokens: 2, cached_tokens: 4 }
  const beside = `${runningUsage},"metrics":{"a":{}}`
  for (const [options, given, passed] of [
    [foreign, runningUsage, ''],
    [{ ...foreign, keepRunning: true }, runningUsage, runningUsage],
    [{ ...foreign, askedRunning: false }, runningUsage, runningUsage],
    [foreign, beside, ',"metrics":{"a":{}}'],
    [{ ...foreign, askedRunning: false }, beside, beside],
  ] as const) {
    const watch = watchStream(options)
    assert.equal(take(watch, frame('a', given)), mine('a', passed))
    assert.equal(take(watch, frame('b', ',"usage":null')), mine('b', ',"usage":null'))
    assert.deepEqual(watch.usage(), used)
  }
})

test('a server that changes the name of the model in the middle does not show it', () => {
  const watch = watchStream(foreign)
  assert.equal(take(watch, frame('a') + frame('b').replace('theirs', 'others')), mine('a') + mine('b'))
})
