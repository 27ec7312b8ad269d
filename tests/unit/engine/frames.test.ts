import assert from 'node:assert/strict'
import { test } from 'node:test'
import { sseEvent } from '../../../engine/http/answer/stream.ts'

test('an event is one line for every client, whatever its text contains, and parses to the same data', () => {
  // Line boundaries of Python's `splitlines`.
  const ends = ['\n', '\r', '\v', '\f', '\x1c', '\x1d', '\x1e', '\u0085', '\u2028', '\u2029']
  const text = `${ends.join('x')} 日本 🦊 \\u2028`
  const written = sseEvent(JSON.stringify({ text }))
  assert.ok(written.endsWith('\n\n'))
  const line = written.slice(0, -2)
  assert.deepEqual(
    ends.filter((end) => line.includes(end)),
    [],
  )
  assert.deepEqual(JSON.parse(line.slice('data: '.length)), { text })
})
