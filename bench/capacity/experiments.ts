// The simulations of the page, and the rows that they give.
import { seededRandom } from '../../tests/support/random.ts'
import type { Costs } from './costs.ts'
import {
  digits,
  outcome,
  type Placed,
  percent,
  policyNames,
  type Row,
  type Say,
  servedCells,
  time,
  whole,
} from './figures.ts'
import { meanWait } from './formulas.ts'
import { type Base, basesOf, parts, type Target } from './plan.ts'
import { simulateQueue } from './queues.ts'
import { lognormal, quantile } from './random.ts'
import { completionsOf, type Rule, scaleDay } from './scaling.ts'
import { type Policy, type Served, serve } from './serving.ts'

export const shared = (base: Base, plan: Target, seconds: number, warmup: number) => ({
  rate: base.rate,
  adapters: base.adapters,
  prompt: plan.prompt,
  tokens: plan.tokens,
  seconds,
  warmup,
  seed: plan.seed,
})

export function placements(bases: readonly Base[], plan: Target, costs: Costs, say: Say): Map<Policy, Placed> {
  return new Map(
    (['least loaded', 'multiplexed', 'hashing', 'affinity'] as const).map((policy) => {
      const results = bases.map((base) =>
        serve(base.replicas, policy, shared(base, plan, 20, 60), costs, plan.gateways),
      )
      const placed = together(results, bases)
      say(`${policy}: ${outcome(placed)}`)
      return [policy, placed]
    }),
  )
}

/** The fewest replicas with a first token within half a second for 95 of 100 requests. */
export function fewestReplicas(base: Base, policy: Policy, plan: Target, costs: Costs): number {
  const isEnough = (replicas: number) =>
    serve(replicas, policy, shared(base, plan, 20, 60), costs, plan.gateways).first_token.p95 <= 0.5
  let [few, enough] = [Math.floor(base.replicas / 2), base.replicas * 3]
  while (enough - few > 1) {
    const middle = Math.floor((few + enough) / 2)
    if (isEnough(middle)) enough = middle
    else few = middle
  }
  return enough
}

/** The requests of all bases as one. */
export function together(results: readonly Served[], bases: readonly Base[]): Placed {
  const merged = (name: 'queue' | 'first_token') =>
    Float64Array.from(results.flatMap(({ samples }) => Array.from(samples[name]))).sort()
  const [queue, first] = [merged('queue'), merged('first_token')]
  const sum = (value: (result: Served) => number) => results.reduce((total, result) => total + value(result), 0)
  const requests = sum((result) => result.requests)
  return {
    requests,
    refused: sum((result) => result.refused),
    answered: sum((result) => result.answered),
    hit_rate: sum((result) => result.hit_rate * result.requests) / Math.max(1, requests),
    loads: sum((result) => result.loads),
    queue: { p50: quantile(queue, 0.5), p95: quantile(queue, 0.95) },
    first_token: { p50: quantile(first, 0.5), p95: quantile(first, 0.95), p99: quantile(first, 0.99) },
    latency: { mean: sum((result) => result.latency.mean * result.requests) / Math.max(1, requests), p95: 0 },
    in_progress: sum((result) => result.in_progress) / results.length,
    overloaded: results.filter(({ answered }, index) => answered < 0.9 * bases[index]!.rate).length,
    bases: bases.length,
  }
}

export function needRows(
  plan: Target,
  costs: Costs,
  bases: readonly Base[],
  training: ReturnType<typeof trainings>,
): Row[] {
  const gpus = bases.reduce((sum, { replicas }) => sum + replicas, 0)
  const [threads, usage, writes, redis, disk, storage] = parts(plan, costs)
  return [
    [
      'answers',
      `${gpus} GPUs (H100)`,
      `${plan.in_progress} requests in progress on each, ${plan.prompt} tokens read and ${plan.tokens} written; ` +
        `${bases.filter(({ replicas }) => replicas === 1).length} bases have one, which is none while it restarts`,
    ],
    [
      'trainings',
      `${training.gpus} GPUs (H100)`,
      `${digits(training.load, 2)} are busy on average, ${digits(training.peak, 2)} at three times the mean rate; ` +
        `then p95 of the wait is ${time(training.simulated.p95)}`,
    ],
    [
      'server processes',
      `${Math.ceil(threads!.load / threads!.capacity)}`,
      `${digits(threads!.load, 2)} main threads are busy, ` +
        `${digits((plan.requests * plan.tokens * costs.event_ms) / 1000, 2)} of them with the events of streams if ` +
        'every request streams; at most 60 % of one, and one more for a failure',
    ],
    [
      'rows of usage',
      `${whole(usage!.load)} rows/s`,
      `${percent(usage!.load / usage!.capacity)} of what one connection writes`,
    ],
    [
      'other writes',
      `${digits(writes!.load, 1)} writes/s`,
      `${percent(writes!.load / writes!.capacity, 1)} of what one connection writes`,
    ],
    ['Redis', `${whole(redis!.load)} scripts/s`, `${percent(redis!.load / redis!.capacity)} of one core`],
    ['disk of the database', `${digits(disk!.load, 1)} TB`, `rows of usage of ${plan.usage_days} days`],
    ['bucket', `${digits(storage!.load, 2)} TB`, `${whole(plan.adapters)} adapters of ${costs.adapter_mb} MB`],
  ]
}

/**
 * Trainings on GPUs of a cluster: the fewest for which one in twenty waits for more than a minute at the busiest time.
 */
export function trainings(plan: Target, costs: Costs) {
  const mean_s = costs.train_start_s + plan.job_tokens / costs.train_tokens
  const cv = (plan.job_cv * plan.job_tokens) / costs.train_tokens / mean_s
  const arrivals = plan.jobs_a_day / 86_400
  const [load, peak] = [arrivals * mean_s, 3 * arrivals * mean_s]
  const draw = (next: () => number) =>
    costs.train_start_s + lognormal(next, plan.job_tokens / costs.train_tokens, plan.job_cv)
  for (let gpus = Math.ceil(peak + 0.01); ; gpus++) {
    const simulated = simulateQueue(gpus, 3 * arrivals, draw, 100_000, seededRandom(plan.seed))
    const formula = meanWait(gpus, 3 * arrivals, mean_s, cv)
    if (simulated.p95 <= 60) return { gpus, load, peak, simulated, formula, mean_s }
  }
}

export const fixedParts = (plan: Target, costs: Costs) => parts(plan, costs).filter(({ grows }) => !grows)

export function doublings(plan: Target, costs: Costs): Row[] {
  const rows: Row[] = []
  for (let times = 1; times <= 64; times *= 2) {
    const more = { ...plan, requests: plan.requests * times, jobs_a_day: plan.jobs_a_day * times }
    const bases = basesOf({ ...more, seed: plan.seed }, costs)
    const fixed = fixedParts(more, costs)
    const threads = parts(more, costs)[0]!
    rows.push([
      `${times} times`,
      whole(bases.reduce((sum, { replicas }) => sum + replicas, 0)),
      whole(Math.ceil(threads.load / threads.capacity)),
      ...fixed.map(({ load, capacity }) => {
        const share = load / capacity
        return share > 1 ? `**${percent(share)}**` : percent(share)
      }),
    ])
    if (fixed.filter(({ load, capacity }) => load > capacity).length > 2) break
  }
  return rows
}

export function growth(base: Base, plan: Target, costs: Costs, say: Say): Row[] {
  const rows: Row[] = []
  for (const times of [0.5, 1, 1.25, 1.5, 2])
    for (const policy of ['least loaded', 'affinity'] as const) {
      const load = shared({ ...base, rate: base.rate * times }, plan, 20, 60)
      const result = serve(base.replicas, policy, load, costs, plan.gateways)
      rows.push([
        `${digits(times)} times, ${whole(load.rate)}/s`,
        policyNames[policy],
        ...servedCells(result, { requests: load.rate }),
      ])
    }
  say('growth done')
  return rows
}

export function sensitivity(base: Base, plan: Target, costs: Costs, say: Say): Row[] {
  const { load } = costs
  const changes: [string, Partial<Costs>, Partial<Target>][] = [
    ['nothing', {}, {}],
    ['16 slots', { slots: 16 }, {}],
    ['32 slots', { slots: 32 }, {}],
    ['160 slots', { slots: 160 }, {}],
    ['loads of a quarter of the time', { load: { disk_ms: load.disk_ms / 4, copy_ms: load.copy_ms / 4 } }, {}],
    ['loads of twice the time', { load: { disk_ms: load.disk_ms * 2, copy_ms: load.copy_ms * 2 } }, {}],
    ['answers of 200 tokens', {}, { tokens: 200 }],
    ['a GPU of half the speed', { step: slower(costs.step, 2) }, {}],
  ]
  const rows: Row[] = []
  for (const [name, cost, target] of changes) {
    const changed = { ...costs, ...cost }
    const changedPlan = { ...plan, ...target }
    const replicas = Math.ceil((base.replicas * replicasRatio(changedPlan, changed)) / replicasRatio(plan, costs))
    for (const policy of ['least loaded', 'affinity'] as const) {
      const result = serve(replicas, policy, shared(base, changedPlan, 20, 60), changed, plan.gateways)
      const sized = replicas === base.replicas ? name : `${name}, ${replicas} GPUs`
      rows.push([sized, policyNames[policy], ...servedCells(result, { requests: base.rate })])
    }
  }
  say('assumptions done')
  return rows
}

export const slower = (step: Costs['step'], times: number): Costs['step'] => ({
  ...step,
  base_ms: step.base_ms * times,
  sequence_ms: step.sequence_ms * times,
  prompt_ms: step.prompt_ms * times,
  adapter_ms: step.adapter_ms * times,
})

/** GPU-seconds of a request. */
export const replicasRatio = (plan: Target, costs: Costs) =>
  plan.in_progress / completionsOf(costs, plan.prompt, plan.tokens)(plan.in_progress)

export function dayRows(plan: Target, costs: Costs, say: Say): Row[] {
  const policy = {
    min_replicas: 1,
    max_replicas: 60,
    target_requests: plan.in_progress,
    target_utilization: null,
    up_cooldown_ms: 30_000,
    down_cooldown_ms: 300_000,
  }
  const office = (hour: number) => Math.exp(-((hour - 11) ** 2) / 8) + 0.8 * Math.exp(-((hour - 15.5) ** 2) / 6)
  const loads: [string, number, (second: number) => number][] = [
    ['a working day from 8:00 to 18:00, at most 560/s', 36_000, (t) => 20 + 500 * office(8 + t / 3600)],
    [
      'two hours at 150/s, each with three minutes of 600/s',
      7200,
      (t) => (t % 3600 > 1200 && t % 3600 < 1380 ? 600 : 150),
    ],
  ]
  const rows: Row[] = []
  for (const [name, seconds, rate] of loads)
    for (const rule of ['Tunery', 'Ray Serve', 'fixed'] as const satisfies Rule[]) {
      const most = Number(rows.find((row) => row[0] === name)?.[5] ?? 1)
      const {
        gpu_seconds,
        wait,
        changes,
        most: used,
      } = scaleDay(
        rule,
        { seconds, rate, prompt: plan.prompt, tokens: plan.tokens, seed: plan.seed },
        rule === 'fixed' ? { ...policy, max_replicas: most } : policy,
        costs,
      )
      rows.push([
        name,
        rule === 'fixed' ? 'as many as Tunery’s most, always' : rule,
        whole(gpu_seconds),
        [wait.mean, wait.p95, wait.p99].map(time).join(', '),
        whole(changes),
        whole(used),
      ])
    }
  say('days done')
  return rows
}
