// Progress watchdog, which readiness reports.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createProgressWatchdog } from '../../../engine/batching/progress-watchdog.ts'

test('work without progress for longer than any step is a stall, until a step finishes or the work ends', () => {
  let now = 0
  const watchdog = createProgressWatchdog({ stalled_after_ms: 15_000, now: () => now })
  now = 100_000
  assert.equal(watchdog.stalled_ms(), 0, 'no work is no stall')
  const end = watchdog.beginWork()
  now += 15_000
  assert.equal(watchdog.stalled_ms(), 0, 'time before the work began does not count')
  now += 1
  assert.equal(watchdog.stalled_ms(), 15_001)
  watchdog.recordProgress()
  assert.equal(watchdog.stalled_ms(), 0)
  const another = watchdog.beginWork()
  now += 20_000
  assert.equal(watchdog.stalled_ms(), 20_000, 'new work is no progress')
  end()
  end()
  now += 20_000
  assert.equal(watchdog.stalled_ms(), 20_000, 'ending twice counts once')
  another()
  assert.equal(watchdog.stalled_ms(), 0)
})
