// Text from bytes: whole characters, and nothing of a stop sequence.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createTextOutput } from '../../../engine/sampling/text-output.ts'

function feed(stop: string[], pieces: (string | number[])[]): { texts: string[]; stopped: boolean } {
  const output = createTextOutput(stop)
  const texts: string[] = []
  for (const piece of pieces) {
    const { text, stopped } = output.push(typeof piece === 'string' ? Buffer.from(piece) : Uint8Array.from(piece))
    texts.push(text)
    if (stopped) return { texts, stopped }
  }
  texts.push(output.finish())
  return { texts, stopped: false }
}

test('a character split over tokens comes out whole, and only when it is complete', () => {
  const fox = Buffer.from('a🦊é')
  assert.deepEqual(
    feed(
      [],
      [...fox].map((byte) => [byte]),
    ).texts,
    ['a', '', '', '', '🦊', '', 'é', ''],
  )
})

test('bytes that never become a character are U+FFFD, inside and at the end', () => {
  assert.deepEqual(
    feed(
      [],
      [
        [0x61, 0xff, 0x62],
        [0xf0, 0x9f],
      ],
    ).texts,
    ['a\ufffdb', '', '\ufffd'],
  )
})

test('a stop sequence split over tokens ends the text before it, and no part of it leaks', () => {
  const { texts, stopped } = feed(['<END>'], ['one <', 'E', 'ND', '> two'])
  assert.deepEqual(texts, ['one ', '', '', ''])
  assert.equal(stopped, true)
})

test('text that was held back comes out once it can no longer be a stop sequence', () => {
  assert.deepEqual(feed(['<END>'], ['one <E', 'NDLESS', ' <', 'EN']).texts, ['one ', '<ENDLESS', ' ', '', '<EN'])
})

test('of several stop sequences, the one that appears first in the text counts', () => {
  assert.equal(feed(['two', 'one'], ['zero one two']).texts.join(''), 'zero ')
})

test('a stop sequence that repeats its own beginning is found', () => {
  assert.deepEqual(feed(['aab'], ['xa', 'a', 'a', 'b!']), { texts: ['x', '', 'a', ''], stopped: true })
})

test('a stop sequence of a character that is split over tokens is found', () => {
  const [first, second] = [[0xf0, 0x9f, 0xa6], [0x8a]]
  assert.deepEqual(feed(['🦊'], ['a', first!, second!]), { texts: ['a', '', ''], stopped: true })
})

test('stop sequences that are nearly there at every token cost no more for it, however long they are', () => {
  const output = createTextOutput([`${'x'.repeat(100_000)}y`, 'xy'])
  const token = Buffer.from('x'.repeat(64))
  const began = performance.now()
  let length = 0
  for (let index = 0; index < 4_096; index++) length += output.push(token).text.length
  assert.equal(length + output.finish().length, 4_096 * 64)
  // Comparing each beginning anew takes hours.
  assert.ok(performance.now() - began < 10_000)
})
