// What the simulation gives beside what closed forms give.
import { seededRandom } from '../../tests/support/random.ts'
import type { Costs } from './costs.ts'
import { shared, trainings } from './experiments.ts'
import { digits, off, percent, type Row, time } from './figures.ts'
import { lruHitRate, meanOf, meanWait, processorSharing, waitQuantile, zipfMass } from './formulas.ts'
import { type Base, slotHits, type Target } from './plan.ts'
import { simulateQueue } from './queues.ts'
import { exponential, sampler, zipf } from './random.ts'
import { completionsOf } from './scaling.ts'
import { serve } from './serving.ts'

export function checks(plan: Target, costs: Costs, bases: readonly Base[]): Row[] {
  const next = seededRandom(plan.seed)
  const row = (what: string, formula: string, simulated: number, expected: number, show: (value: number) => string) => [
    what,
    formula,
    show(simulated),
    show(expected),
    off(simulated, expected),
  ]
  const draw = sampler(zipf(plan.adapters, plan.exponent))
  let top = 0
  for (let n = 0; n < 1e6; n++) top += Number(draw(next) < 100)
  const rate = 20
  const one = {
    rate,
    adapters: [1],
    prompt: plan.prompt,
    tokens: plan.tokens,
    seconds: 3000,
    warmup: 30,
    seed: plan.seed,
  }
  const alone = serve(1, 'least loaded', one, costs, 1, false)
  const sharing = meanOf(processorSharing(rate, completionsOf(costs, plan.prompt, plan.tokens, false), 2000))
  const exact = simulateQueue(4, 3.2, (random) => exponential(random, 1), 4_000_000, next)
  const general = trainings(plan, costs)
  const writer = simulateQueue(1, plan.requests, () => 1 / costs.usage_rows, 200_000, next)
  const half = { ...bases[0]!, rate: bases[0]!.rate / 2 }
  const calm = serve(half.replicas, 'least loaded', shared(half, plan, 20, 60), costs, plan.gateways)
  const cache = simulateCache(zipf(1000, 1), 100, 500_000, next)
  return [
    row(
      'requests of the first 100 adapters',
      'Zipf’s mass',
      top / 1e6,
      zipfMass(100, plan.adapters, plan.exponent),
      (value) => percent(value, 1),
    ),
    row(
      `requests in progress of one replica at ${rate}/s, without adapters`,
      'processor sharing, insensitive',
      alone.in_progress,
      sharing,
      digits,
    ),
    row('the same by latency and rate', 'Little', alone.latency.mean * alone.answered, alone.in_progress, digits),
    row(
      'wait at M/M/4 with load 3.2, mean, in service times',
      'Erlang C',
      exact.mean,
      meanWait(4, 3.2, 1, 1),
      (value) => digits(value, 3),
    ),
    row('the same, p95', 'Erlang C', exact.p95, waitQuantile(4, 3.2, 1, 0.95), (value) => digits(value, 2)),
    row(
      `wait of a training, ${general.gpus} GPUs, busiest time`,
      'Allen and Cunneen, M/G/k',
      general.simulated.mean,
      general.formula,
      time,
    ),
    row(
      'wait of a row of usage for the connection, ms',
      'Pollaczek and Khinchine, M/D/1',
      1000 * writer.mean,
      1000 * meanWait(1, plan.requests, 1 / costs.usage_rows, 0),
      (value) => digits(value, 4),
    ),
    row(
      'hits of a cache of 100 of 1,000 (Zipf), least recently used goes',
      'Che',
      cache,
      lruHitRate(zipf(1000, 1), 100),
      (value) => percent(value, 1),
    ),
    row(
      'slot hits of the largest base at half its load, fewest requests alone',
      'Che, each replica has all adapters',
      calm.hit_rate,
      slotHits([half], { ...plan, requests: plan.requests / 2 }, costs.slots),
      (value) => percent(value, 1),
    ),
  ]
}

/** Hits of a cache alone, without requests that run. */
export function simulateCache(shares: readonly number[], slots: number, count: number, next: () => number): number {
  const draw = sampler(shares)
  const held = new Map<number, true>()
  let hits = 0
  for (let n = -count / 10; n < count; n++) {
    const one = draw(next)
    const isHit = held.delete(one)
    if (isHit && n >= 0) hits++
    held.set(one, true)
    if (held.size > slots) held.delete(held.keys().next().value!)
  }
  return hits / count
}
