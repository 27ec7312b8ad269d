// The target load: which bases and adapters there are, how many replicas each base has, and what the rest of the
// service has to bear.

import { seededRandom } from '../../tests/support/random.ts'
import type { Costs } from './costs.ts'
import { lruHitRate, meanOf, processorSharing } from './formulas.ts'
import { sampler, zipf } from './random.ts'
import { completionsOf } from './scaling.ts'

export interface Target {
  adapters: number
  bases: number
  /** Exponent of both laws of Zipf: the bases by their adapters, the adapters by their requests. */
  exponent: number
  requests: number
  jobs_a_day: number
  prompt: number
  tokens: number
  job_tokens: number
  /** Standard deviation of a job's tokens, divided by their mean. */
  job_cv: number
  /** Requests in progress that a replica should have. */
  in_progress: number
  gateways: number
  /** Days for which rows of usage are kept. */
  usage_days: number
  seed: number
}

export const target: Target = {
  adapters: 10_000,
  bases: 20,
  exponent: 1,
  requests: 2000,
  jobs_a_day: 1000,
  prompt: 400,
  tokens: 100,
  job_tokens: 300_000,
  job_cv: 1.5,
  in_progress: 32,
  gateways: 6,
  usage_days: 90,
  seed: 1,
}

export interface Base {
  /** Share of all requests that each of its adapters has, the largest first. */
  adapters: number[]
  rate: number
  replicas: number
}

/** Each adapter of the one law is of a base drawn by the other. */
export function basesOf(plan: Target, costs: Costs): Base[] {
  const next = seededRandom(plan.seed)
  const draw = sampler(zipf(plan.bases, plan.exponent))
  const bases = Array.from({ length: plan.bases }, () => [] as number[])
  for (const share of zipf(plan.adapters, plan.exponent)) bases[draw(next)]!.push(share)
  return bases.map((adapters) => {
    const rate = plan.requests * adapters.reduce((sum, share) => sum + share, 0)
    return { adapters, rate, replicas: replicasFor(rate, plan, costs) }
  })
}

/** The fewest replicas with no more than the plan's requests in progress on average, adapters left aside. */
export function replicasFor(rate: number, plan: Target, costs: Costs): number {
  const completions = completionsOf(costs, plan.prompt, plan.tokens)
  for (let replicas = 1; ; replicas++)
    if (meanOf(processorSharing(rate / replicas, completions, 2000)) <= plan.in_progress) return replicas
}

/** GPUs if each adapter has replicas of its own, as a deployment on Ray has: those asked within the time to zero. */
export function dedicatedReplicas(bases: readonly Base[], plan: Target, costs: Costs, idle_s: number) {
  let [awake, replicas] = [0, 0]
  for (const { adapters } of bases)
    for (const share of adapters) {
      const rate = share * plan.requests
      const isAwake = 1 - Math.exp(-rate * idle_s)
      awake += isAwake
      replicas += isAwake * (rate < 1 ? 1 : replicasFor(rate, plan, costs))
    }
  return { awake, replicas }
}

/**
 * The share of requests whose adapter has a slot, by Che's approximation, if each replica gets all adapters of its
 * base.
 */
export function slotHits(bases: readonly Base[], plan: Target, slots: number): number {
  const hits = bases.reduce((sum, { adapters, rate, replicas }) => {
    const rates = adapters.map((share) => (share * plan.requests) / replicas)
    return sum + rate * lruHitRate(rates, slots)
  }, 0)
  return hits / bases.reduce((sum, { rate }) => sum + rate, 0)
}

export interface Part {
  name: string
  /** What it has to bear, and what it can. */
  load: number
  capacity: number
  unit: string
  /** Whether more processes or machines help. */
  grows: boolean
}

/** All that has to bear the load beside the GPUs. */
export function parts(plan: Target, costs: Costs): Part[] {
  const { requests, tokens, jobs_a_day, adapters } = plan
  const jobs = jobs_a_day / 86_400
  // A batch has 2,048 tokens, as in the record; each step is a line of the job's events.
  const steps = jobs * (plan.job_tokens / 2048)
  return [
    {
      name: 'server processes, main threads (requests and the events of their streams)',
      load: requests / costs.gateway_requests + (requests * tokens * costs.event_ms) / 1000,
      capacity: 0.6,
      unit: 'busy threads; one should be busy for 60 % at most',
      grows: true,
    },
    {
      name: 'rows of usage, one connection in turn',
      load: requests,
      capacity: costs.usage_rows,
      unit: 'rows/s',
      grows: false,
    },
    {
      name: 'other writes, one connection in turn (3 creating requests a job, its events)',
      load: 3 * jobs + steps,
      capacity: costs.creating_requests,
      unit: 'writes/s',
      grows: false,
    },
    {
      name: 'Redis, scripts of one core',
      load: requests,
      capacity: costs.redis_scripts,
      unit: 'scripts/s',
      grows: false,
    },
    {
      name: `disk for rows of usage, ${plan.usage_days} days`,
      load: (requests * 86_400 * plan.usage_days * costs.usage_row_bytes) / 1e12,
      capacity: 16,
      unit: 'TB; 16 on one volume',
      grows: false,
    },
    {
      name: 'storage for adapters',
      load: (adapters * costs.adapter_mb) / 1e6,
      capacity: Number.POSITIVE_INFINITY,
      unit: 'TB in the bucket',
      grows: true,
    },
  ]
}
