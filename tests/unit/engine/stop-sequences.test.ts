// Output text from token bytes: whole characters, no part of a stop sequence.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createTextOutput } from '../../../engine/sampling/stop-sequences.ts'
import { allowed } from '../../support/allowed-time.ts'

function feed(stop: string[], pieces: (string | number[])[]): { texts: string[]; stopped: boolean } {
  const output = createTextOutput(stop)
  const texts: string[] = []
  for (const piece of pieces) {
    const { text, stopped } = output.push(typeof piece === 'string' ? Buffer.from(piece) : Uint8Array.from(piece))
    texts.push(text)
    if (stopped) return { texts, stopped }
  }
  const { text, stopped } = output.finish()
  return { texts: [...texts, text], stopped }
}

test('a character split over tokens is sent once it is complete', () => {
  const fox = Buffer.from('a🦊é')
  assert.deepEqual(
    feed(
      [],
      [...fox].map((byte) => [byte]),
    ).texts,
    ['a', '', '', '', '🦊', '', 'é', ''],
  )
})

test('invalid or incomplete characters become U+FFFD, inside the text and at its end', () => {
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

test('a stop sequence split over tokens ends the text before it, and no part of it is sent', () => {
  const { texts, stopped } = feed(['<END>'], ['one <', 'E', 'ND', '> two'])
  assert.deepEqual(texts, ['one ', '', '', ''])
  assert.equal(stopped, true)
})

test('text held back is sent once it cannot be a stop sequence', () => {
  assert.deepEqual(feed(['<END>'], ['one <E', 'NDLESS', ' <', 'EN']).texts, ['one ', '<ENDLESS', ' ', '', '<EN'])
})

test('of several stop sequences, the first in the text counts', () => {
  assert.equal(feed(['two', 'one'], ['zero one two']).texts.join(''), 'zero ')
})

test('of stop sequences within each other, the one that is complete first counts, however the text is split', () => {
  const cases: [stop: string[], text: string, sent: string][] = [
    [['<call>', 'all'], 'a<call>b', 'a<c'],
    [['call>', '<call>'], 'a<call>b', 'a'],
    [['abc', 'b'], 'xabc', 'xa'],
  ]
  for (const [stop, text, sent] of cases)
    for (const pieces of [[text], [...text], [text.slice(0, 3), text.slice(3)]])
      for (const order of [stop, stop.toReversed()]) {
        const { texts, stopped } = feed(order, pieces)
        assert.deepEqual([texts.join(''), stopped], [sent, true])
      }
})

test('a stop sequence that repeats its own prefix is found', () => {
  assert.deepEqual(feed(['aab'], ['xa', 'a', 'a', 'b!']), { texts: ['x', '', 'a', ''], stopped: true })
})

test('a stop sequence is found if its character is split over tokens', () => {
  const [first, second] = [[0xf0, 0x9f, 0xa6], [0x8a]]
  assert.deepEqual(feed(['🦊'], ['a', first!, second!]), { texts: ['a', '', ''], stopped: true })
})

test('long stop sequences that nearly match at every token cost linear time', () => {
  const output = createTextOutput([`${'x'.repeat(100_000)}y`, 'xy'])
  const token = Buffer.from('x'.repeat(64))
  const began = performance.now()
  let length = 0
  for (let index = 0; index < 4_096; index++) length += output.push(token).text.length
  assert.equal(length + output.finish().text.length, 4_096 * 64)
  // A naive search takes hours.
  assert.ok(performance.now() - began < allowed(10_000))
})
