import assert from 'node:assert/strict'
import { test } from 'node:test'
import { frame } from '../../../engine/http/answer/stream.ts'

test('a frame is one line for every reader, whatever its text holds, and says the same', () => {
  // Where Python's `splitlines` ends a line.
  const ends = ['\n', '\r', '\v', '\f', '\x1c', '\x1d', '\x1e', '\u0085', '\u2028', '\u2029']
  const text = `${ends.join('x')} 日本 🦊 \\u2028`
  const written = frame(JSON.stringify({ text }))
  assert.ok(written.endsWith('\n\n'))
  const line = written.slice(0, -2)
  assert.deepEqual(
    ends.filter((end) => line.includes(end)),
    [],
  )
  assert.deepEqual(JSON.parse(line.slice('data: '.length)), { text })
})
