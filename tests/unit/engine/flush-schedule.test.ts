import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createFlushSchedule } from '../../../engine/http/answer/flush-schedule.ts'

test('all streams flush at the same moments: the more streams, the rarer, and at most 200 ms apart', () => {
  let now = 1000
  const schedule = createFlushSchedule(() => now)
  schedule.join()
  assert.equal(schedule.interval_ms(), 25)
  assert.equal(schedule.due(Number.NEGATIVE_INFINITY), true, 'the first text goes out at once')
  assert.equal(schedule.due(1000), false)
  now = 1024
  assert.equal(schedule.due(1000), false)
  now = 1025
  assert.equal(schedule.due(1000), true)
  assert.equal(schedule.due(1024), true, 'a stream that flushed late in the last interval flushes with the others')
  const leave = Array.from({ length: 63 }, () => schedule.join())
  assert.equal(schedule.interval_ms(), 200)
  for (const release of leave) release()
  assert.equal(schedule.interval_ms(), 25)
})
