// Windows that count requests in this process.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createFixedWindows } from '../../server/platform/redis/window-counter.ts'

test('a window opens with the first count of its key and ends after its time, however often it is counted', () => {
  let now = 1000
  const windows = createFixedWindows(60, () => now)
  assert.equal(windows.get('a'), undefined)
  assert.deepEqual({ ...windows.add('a') }, { count: 1, resets_at: 1060 })
  now = 1030
  windows.add('b')
  assert.deepEqual({ ...windows.add('a', 2) }, { count: 3, resets_at: 1060 })
  now = 1060
  assert.equal(windows.get('a'), undefined)
  assert.deepEqual({ ...windows.add('a') }, { count: 1, resets_at: 1120 })
  assert.equal(windows.get('b')?.count, 1)
})

test('keys that never come again leave no memory behind', () => {
  let now = 0
  const windows = createFixedWindows(10, () => now)
  for (now = 0; now < 1000; now++) windows.add(`key ${now}`)
  assert.ok(windows.size() <= 11)
})
