import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createBeat } from '../../../engine/http/answer/flush-schedule.ts'

test('all streams write in the same moments, the rarer the more there are, and never more than 200 ms apart', () => {
  let now = 1000
  const beat = createBeat(() => now)
  beat.join()
  assert.equal(beat.ms(), 25)
  assert.equal(beat.due(Number.NEGATIVE_INFINITY), true, 'the first text goes out at once')
  assert.equal(beat.due(1000), false)
  now = 1024
  assert.equal(beat.due(1000), false)
  now = 1025
  assert.equal(beat.due(1000), true)
  assert.equal(beat.due(1024), true, 'one that wrote late in the last moment writes with the others')
  const leave = Array.from({ length: 63 }, () => beat.join())
  assert.equal(beat.ms(), 200)
  for (const each of leave) each()
  assert.equal(beat.ms(), 25)
})
