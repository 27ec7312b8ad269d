import assert from 'node:assert/strict'
import { test } from 'node:test'
import { firstSizeClass, runnerShapes } from '../../../engine/batching/slot-sizes.ts'

const gibibyte = 1024 ** 3
const limits = { slots: 32, runner_bytes: gibibyte, total_bytes: 8 * gibibyte }

test('a small model gets all slots, and its whole context in the longest ones', () => {
  const shapes = runnerShapes({ context_length: 8192, kv_bytes_per_token: 23_040 }, limits)
  assert.deepEqual(
    shapes.map(({ slots, tokens_per_slot }) => [slots, tokens_per_slot]),
    [
      [32, 512],
      [16, 2048],
      [2, 8192],
    ],
  )
})

test('the runners of a large model stay within their memory limit: fewer slots first, then shorter ones', () => {
  const shapes = runnerShapes({ context_length: 131_072, kv_bytes_per_token: 131_072 }, limits)
  assert.deepEqual(
    shapes.map(({ slots, tokens_per_slot }) => [slots, tokens_per_slot]),
    [
      [16, 512],
      [4, 2048],
      [1, 8192],
    ],
  )
  for (const { slots, bytes_per_slot } of shapes) assert.ok(slots * bytes_per_slot <= gibibyte)
})

test('a model with a short context has no slots longer than it', () => {
  assert.equal(runnerShapes({ context_length: 512, kv_bytes_per_token: 1000 }, limits).length, 1)
})

test('a request starts in the shortest slot that fits its prompt and an answer of expected length', () => {
  const shapes = runnerShapes({ context_length: 8192, kv_bytes_per_token: 23_040 }, limits)
  assert.equal(firstSizeClass(shapes, 100, 4000), 0)
  assert.equal(firstSizeClass(shapes, 500, 12), 0)
  assert.equal(firstSizeClass(shapes, 300, 4000), 1)
  assert.equal(firstSizeClass(shapes, 8191, 1), 2)
})
