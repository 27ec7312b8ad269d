// Which adapters earn a merged copy, and which copies make room; tests/process/merging.test.ts has it on a real engine.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createHeat } from '../../server/inference/merged-adapters/decaying-counter.ts'
import { type Kept, plan } from '../../server/inference/merged-adapters/plan.ts'

const earned = 1000
const candidate = (id: string, heat: number, bytes = 100) => ({ id, heat, bytes })
const copy = (id: string, heat: number, more: Partial<Kept> = {}) => ({ id, heat, bytes: 100, leaving: false, ...more })

test('heat fades by half in its time, and what is added counts in full', () => {
  let now = 0
  const heat = createHeat(200, () => now)
  heat.add(800)
  now = 200
  assert.equal(heat.value(), 400)
  heat.add(100)
  now = 600
  assert.equal(heat.value(), 125)
})

test('heat is not spent while an answer is under way that nothing has been added for yet', () => {
  let now = 0
  const heat = createHeat(200, () => now)
  heat.expect()
  now = 60_000
  assert.equal(heat.isSpent(), false)
  heat.add(800)
  now = 600_000
  assert.equal(heat.isSpent(), false)
  now = 700_000
  assert.equal(heat.isSpent(), true)
  heat.expect()
  assert.equal(heat.isSpent(), false)
})

test('the hottest that earned a copy gets it where there is room; what is cool gets none', () => {
  assert.deepEqual(plan([candidate('cool', 999), candidate('warm', 1500), candidate('hot', 9000)], [], earned, 100), {
    merge: 'hot',
    giveUp: [],
  })
  assert.deepEqual(plan([candidate('cool', 999)], [], earned, 100), { giveUp: [] })
  assert.deepEqual(plan([candidate('large', 9000, 500), candidate('small', 2000)], [], earned, 400), {
    merge: 'small',
    giveUp: [],
  })
  assert.deepEqual(plan([candidate('hot', 9000)], [], earned, 99), { giveUp: [] })
})

test('a copy makes room for what is clearly hotter and for nothing else, the coldest first and no more than needed', () => {
  const copies = [copy('a', 4000), copy('b', 2000), copy('c', 3000)]
  assert.deepEqual(plan([candidate('hot', 3999)], copies, earned, 300), { giveUp: [] })
  assert.deepEqual(plan([candidate('hot', 4000)], copies, earned, 300), { giveUp: ['b'] })
  assert.deepEqual(plan([candidate('hot', 6000, 150)], copies, earned, 300), { giveUp: ['b', 'c'] })
  assert.deepEqual(
    plan([candidate('hot', 5999, 150)], copies, earned, 300),
    { giveUp: [] },
    'none goes for too little room',
  )
})

test('memory is taken until a copy has gone, and nothing else has to go for it meanwhile', () => {
  assert.deepEqual(plan([candidate('hot', 9000)], [copy('a', 2000, { leaving: true }), copy('b', 2000)], earned, 200), {
    giveUp: [],
  })
  assert.deepEqual(plan([candidate('hot', 9000)], [copy('b', 2000)], earned, 200), { merge: 'hot', giveUp: [] })
})

test('a copy stays while its adapter cools, until an eighth of what earned it', () => {
  assert.deepEqual(plan([], [copy('a', 126), copy('b', 124)], earned, 300), { giveUp: ['b'] })
})
