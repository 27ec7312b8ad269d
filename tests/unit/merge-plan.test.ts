// Which adapters are merged and which are evicted; tests/process/merging.full.test.ts runs this on a real engine.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createDecayingCounter } from '../../server/features/serving/merged-adapters/decaying-counter.ts'
import { type MergedAdapter, plan } from '../../server/features/serving/merged-adapters/plan.ts'

const minDemand = 1000
const candidate = (id: string, demand: number, bytes = 100) => ({ id, demand, bytes })
const merged = (id: string, demand: number, more: Partial<MergedAdapter> = {}) => ({
  id,
  demand,
  bytes: 100,
  draining: false,
  ...more,
})

test('the counter halves every half-life, and additions count in full', () => {
  let now = 0
  const counter = createDecayingCounter(200, () => now)
  counter.add(800)
  now = 200
  assert.equal(counter.value(), 400)
  counter.add(100)
  now = 600
  assert.equal(counter.value(), 125)
})

test('the counter does not expire while a request is running', () => {
  let now = 0
  const counter = createDecayingCounter(200, () => now)
  counter.touch()
  now = 60_000
  assert.equal(counter.isExpired(), false)
  counter.add(800)
  now = 600_000
  assert.equal(counter.isExpired(), false)
  now = 700_000
  assert.equal(counter.isExpired(), true)
  counter.touch()
  assert.equal(counter.isExpired(), false)
})

test('the adapter with the most demand that fits is merged; low demand is not merged', () => {
  assert.deepEqual(
    plan([candidate('cool', 999), candidate('warm', 1500), candidate('hot', 9000)], [], minDemand, 100),
    { merge: 'hot', evict: [] },
  )
  assert.deepEqual(plan([candidate('cool', 999)], [], minDemand, 100), { evict: [] })
  assert.deepEqual(plan([candidate('large', 9000, 500), candidate('small', 2000)], [], minDemand, 400), {
    merge: 'small',
    evict: [],
  })
  assert.deepEqual(plan([candidate('hot', 9000)], [], minDemand, 99), { evict: [] })
})

test('merged adapters are evicted only for twice their demand, least demand first and no more than needed', () => {
  const adapters = [merged('a', 4000), merged('b', 2000), merged('c', 3000)]
  assert.deepEqual(plan([candidate('hot', 3999)], adapters, minDemand, 300), { evict: [] })
  assert.deepEqual(plan([candidate('hot', 4000)], adapters, minDemand, 300), { evict: ['b'] })
  assert.deepEqual(plan([candidate('hot', 6000, 150)], adapters, minDemand, 300), { evict: ['b', 'c'] })
  assert.deepEqual(
    plan([candidate('hot', 5999, 150)], adapters, minDemand, 300),
    { evict: [] },
    'nothing is evicted if that does not free enough memory',
  )
})

test('a draining adapter counts as used memory, and no other is evicted meanwhile', () => {
  assert.deepEqual(
    plan([candidate('hot', 9000)], [merged('a', 2000, { draining: true }), merged('b', 2000)], minDemand, 200),
    { evict: [] },
  )
  assert.deepEqual(plan([candidate('hot', 9000)], [merged('b', 2000)], minDemand, 200), { merge: 'hot', evict: [] })
})

test('a merged adapter is evicted when its demand falls below an eighth of the threshold', () => {
  assert.deepEqual(plan([], [merged('a', 126), merged('b', 124)], minDemand, 300), { evict: ['b'] })
})
