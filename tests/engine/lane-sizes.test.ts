import assert from 'node:assert/strict'
import { test } from 'node:test'
import { laneShapes } from '../../engine/lane-sizes.ts'

const gibibyte = 1024 ** 3
const limits = { short_slots: 16, short_lane_bytes: gibibyte, long_lane_bytes: gibibyte, total_bytes: 8 * gibibyte }

test('a small model gets all the slots, and its whole context in the long lane', () => {
  const { short, long } = laneShapes({ context_length: 8192, kv_bytes_per_token: 23_040 }, limits)
  assert.deepEqual([short.slots, short.tokens_per_slot], [16, 2048])
  assert.deepEqual([long!.slots, long!.tokens_per_slot], [2, 8192])
})

test('no lane of a large model costs more than its budget: fewer slots first, then shorter ones', () => {
  const model = { context_length: 131_072, kv_bytes_per_token: 131_072 }
  const { short, long } = laneShapes(model, limits)
  assert.deepEqual([short.slots, short.tokens_per_slot], [4, 2048])
  assert.deepEqual([long!.slots, long!.tokens_per_slot], [1, 8192])
  for (const { slots, bytes_per_slot } of [short, long!]) assert.ok(slots * bytes_per_slot <= gibibyte)
})

test('a model whose context fits the short lane has no long one', () => {
  assert.equal(laneShapes({ context_length: 2048, kv_bytes_per_token: 1000 }, limits).long, null)
})
