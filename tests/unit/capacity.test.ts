// The simulation behind docs/capacity.md: it agrees with closed forms where there are some, and repeats itself.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { readCosts, recorded } from '../../bench/capacity/costs.ts'
import {
  erlangC,
  lruHitRate,
  meanOf,
  meanWait,
  processorSharing,
  waitQuantile,
  zipfMass,
} from '../../bench/capacity/formulas.ts'
import { basesOf, target } from '../../bench/capacity/plan.ts'
import { simulateQueue } from '../../bench/capacity/queues.ts'
import { exponential, sampler, zipf } from '../../bench/capacity/random.ts'
import { completionsOf } from '../../bench/capacity/scaling.ts'
import { type Load, serve } from '../../bench/capacity/serving.ts'
import { seededRandom } from '../support/random.ts'

const { costs, list } = readCosts()
const load: Load = { rate: 15, adapters: [1], prompt: 400, tokens: 100, seconds: 1000, warmup: 20, seed: 1 }
const near = (value: number, expected: number, share: number, what: string) =>
  assert.ok(Math.abs(value / expected - 1) < share, `${what}: ${value}, expected ${expected}`)

test('requests in progress of one replica are those of processor sharing, and Little’s law holds', () => {
  const served = serve(1, 'least loaded', load, costs, 1, false)
  const expected = meanOf(processorSharing(load.rate, completionsOf(costs, load.prompt, load.tokens, false), 2000))
  near(served.in_progress, expected, 0.03, 'in progress')
  near(served.latency.mean * served.answered, served.in_progress, 0.02, 'rate times latency')
  near(served.answered, load.rate, 0.02, 'answered')
})

test('waits are Erlang’s, and those of a queue with one server are Pollaczek and Khinchine’s', () => {
  near(erlangC(4, 3.2), 0.5964, 0.001, 'Erlang C of the tables')
  const several = simulateQueue(4, 3.2, (next) => exponential(next, 1), 400_000, seededRandom(4))
  near(several.mean, meanWait(4, 3.2, 1, 1), 0.05, 'mean wait at M/M/4')
  near(several.waited, erlangC(4, 3.2), 0.03, 'share that waits')
  near(several.p95, waitQuantile(4, 3.2, 1, 0.95), 0.05, 'p95 at M/M/4')
  const one = simulateQueue(1, 0.7, () => 1, 200_000, seededRandom(1))
  near(one.mean, 0.7 / (2 * 0.3), 0.05, 'mean wait at M/D/1')
})

test('slot hits are those of Che’s approximation, and shares those of Zipf', () => {
  const adapters = zipf(600, 1)
  const calm = { ...load, rate: 8, adapters, seconds: 600, warmup: 200 }
  const served = serve(2, 'least loaded', calm, { ...costs, slots: 64, host_adapters: 600 }, 1)
  const expected = lruHitRate(
    adapters.map((share) => (share * calm.rate) / 2),
    64,
  )
  near(served.hit_rate, expected, 0.04, 'slot hits')
  const draw = sampler(zipf(10_000, 1))
  const next = seededRandom(1)
  let top = 0
  for (let n = 0; n < 200_000; n++) top += Number(draw(next) < 100)
  near(top / 200_000, zipfMass(100, 10_000, 1), 0.01, 'requests of the first 100 of 10,000')
})

test('affinity serves what the fewest requests alone cannot, on the same replicas', () => {
  const base = { ...load, rate: 70, adapters: zipf(500, 1), seconds: 20, warmup: 30 }
  const run = (policy: 'least loaded' | 'affinity') => serve(5, policy, base, { ...costs, slots: 48 }, 3)
  const [before, now] = [run('least loaded'), run('affinity')]
  assert.ok(now.hit_rate > before.hit_rate + 0.1, `slot hits ${now.hit_rate} to ${before.hit_rate}`)
  assert.ok(now.loads < before.loads / 2, `loads a second ${now.loads} to ${before.loads}`)
  assert.ok(now.first_token.p95 < before.first_token.p95, `${now.first_token.p95} to ${before.first_token.p95}`)
})

test('the same seed gives the same figures, another seed others', () => {
  const run = (seed: number) =>
    serve(2, 'affinity', { ...load, rate: 40, adapters: zipf(50, 1), seconds: 10, seed }, costs, 2)
  assert.deepEqual(run(1), run(1))
  assert.notDeepEqual(run(1), run(2))
  assert.deepEqual(basesOf(target, costs), basesOf(target, costs))
})

test('every cost has a source, and one whose record is gone is an error', () => {
  for (const { name, source, value } of list) assert.ok(source && value > 0, name)
  assert.ok(list.some(({ measured }) => measured) && list.some(({ measured }) => !measured))
  assert.throws(() => recorded({ topic: 'many', claim: 'nothing' }), /has no record "nothing"/)
})
