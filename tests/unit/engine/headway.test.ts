// Readiness tells of work that does not move on.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createHeadway } from '../../../engine/batching/headway.ts'

test('work without a step for longer than any step takes is told, until a step is done or the work has ended', () => {
  let now = 0
  const headway = createHeadway({ stalled_after_ms: 15_000, now: () => now })
  now = 100_000
  assert.equal(headway.stalledMs(), 0, 'nothing to do is no stall')
  const end = headway.begin()
  now += 15_000
  assert.equal(headway.stalledMs(), 0, 'the time before there was work does not count')
  now += 1
  assert.equal(headway.stalledMs(), 15_001)
  headway.note()
  assert.equal(headway.stalledMs(), 0)
  const another = headway.begin()
  now += 20_000
  assert.equal(headway.stalledMs(), 20_000, 'more work is no step')
  end()
  end()
  now += 20_000
  assert.equal(headway.stalledMs(), 20_000, 'what ended twice ended once')
  another()
  assert.equal(headway.stalledMs(), 0)
})
