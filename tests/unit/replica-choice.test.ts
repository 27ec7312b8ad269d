// Which replica a request goes to: an adapter stays where it is loaded, as long as nobody waits for that.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { chooseReplica, leastLoaded, withAffinity } from '../../server/features/serving/replicas/choice.ts'

const fleet = (size: number, loadsOnDemand = true) =>
  Array.from({ length: size }, (_, index) => ({
    name: `base at gpu-${index}:8000`,
    max_concurrent: 256,
    inFlight: 0,
    loadsOnDemand,
  }))
const adapters = Array.from({ length: 1000 }, (_, index) => `model_${index}`)

test('an adapter has one replica, the same in every server process and in whatever order they are named', () => {
  const replicas = fleet(10)
  const counts = new Map<string, number>()
  for (const adapter of adapters) {
    const { name } = withAffinity(replicas, adapter)!
    assert.equal(withAffinity(replicas.toReversed(), adapter)!.name, name)
    assert.equal(withAffinity(fleet(10), adapter)!.name, name)
    counts.set(name, (counts.get(name) ?? 0) + 1)
  }
  for (const [name, count] of counts) assert.ok(count > 60 && count < 140, `${name} has ${count} of 1,000 adapters`)
  assert.equal(counts.size, 10)
})

test('a replica that goes away moves its own adapters alone', () => {
  const replicas = fleet(10)
  const [gone, ...left] = replicas
  for (const adapter of adapters) {
    const before = withAffinity(replicas, adapter)!
    const after = withAffinity(left, adapter)!
    if (before !== gone) assert.equal(after, before)
  }
})

test('an adapter in high demand spreads over as many replicas as it needs, the same ones each time', () => {
  const spread = () => {
    const replicas = fleet(10)
    for (let request = 0; request < 400; request++) withAffinity(replicas, 'busy')!.inFlight++
    return replicas.map(({ inFlight }) => inFlight)
  }
  const counts = spread()
  assert.ok(Math.max(...counts) <= 60, `at most one and a half times the mean of 40: ${counts}`)
  assert.deepEqual(spread(), counts)
  const few = fleet(10)
  for (let request = 0; request < 8; request++) withAffinity(few, 'quiet')!.inFlight++
  assert.equal(few.filter(({ inFlight }) => inFlight > 0).length, 1, 'a few requests at once stay together')
})

test('a full replica is passed over, and without free capacity there is none', () => {
  const replicas = fleet(3)
  const home = withAffinity(replicas, 'one')!
  home.inFlight = home.max_concurrent
  const next = withAffinity(replicas, 'one')!
  assert.notEqual(next, home)
  for (const replica of replicas) replica.inFlight = replica.max_concurrent
  assert.equal(withAffinity(replicas, 'one'), undefined)
  assert.equal(withAffinity([], 'one'), undefined)
  assert.equal(leastLoaded([], 3), undefined)
})

test('a base, and what all replicas have, goes to the one with the fewest requests', () => {
  const replicas = fleet(3)
  replicas[0]!.inFlight = 2
  replicas[2]!.inFlight = 1
  assert.equal(chooseReplica(replicas, undefined, 0), replicas[1])
  const dedicated = fleet(3, false)
  const chosen = Array.from({ length: 6 }, (_, rotation) => chooseReplica(dedicated, 'one', rotation)!.name)
  assert.equal(new Set(chosen).size, 3, 'in turn among equals')
  assert.equal(chooseReplica([...fleet(1), ...dedicated.slice(1)], 'one', 1), dedicated[1], 'not where kinds are mixed')
})
