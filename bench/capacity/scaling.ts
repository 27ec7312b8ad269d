// A day of one base under two rules for the number of its replicas: ours, which is the service's own function, and Ray
// Serve's. Requests are counted, not followed: seconds of arrivals are a group with one time of arrival.

import {
  addObservation,
  autoscale,
  decisionsKept_ms,
  type Observation,
  type ScalingDecision,
  type ScalingPolicy,
} from '../../server/features/scaling/autoscaler.ts'
import { seededRandom } from '../../tests/support/random.ts'
import type { Costs } from './costs.ts'
import { poisson, quantile } from './random.ts'
import { ServeRule } from './ray-serve-rule.ts'

export interface Day {
  seconds: number
  /** Requests a second at a time of the day. */
  rate: (second: number) => number
  prompt: number
  tokens: number
  seed: number
}

export interface ScaledDay {
  gpu_seconds: number
  /** Seconds that requests took longer than on a replica with its target of requests. */
  wait: { mean: number; p95: number; p99: number }
  changes: number
  most: number
}

export type Rule = 'Tunery' | 'Ray Serve' | 'fixed'

export function scaleDay(rule: Rule, day: Day, policy: ScalingPolicy, costs: Costs): ScaledDay {
  const next = seededRandom(day.seed)
  const { target_requests: target, min_replicas, max_replicas } = policy
  const serve = new ServeRule({
    min_replicas,
    max_replicas,
    target_ongoing_requests: target,
    upscale_delay_s: policy.up_cooldown_ms / 1000,
    downscale_delay_s: policy.down_cooldown_ms / 1000,
    look_back_period_s: 30,
  })
  /** Answers a second of a replica with n requests in progress. */
  const rateOf = completionsOf(costs, day.prompt, day.tokens)
  const atTarget_s = target / rateOf(target)
  /** The day begins with what its first second takes. */
  const first = Math.max(min_replicas, Math.ceil(day.rate(0) / rateOf(target)))
  /** When each replica takes requests. */
  let replicas: number[] = Array.from({ length: rule === 'fixed' ? max_replicas : first }, () => 0)
  const observations: Observation[] = []
  let decisions: ScalingDecision[] = []
  /** Waiting and running requests, by their second of arrival. */
  const waiting: { arrived: number; count: number }[] = []
  let [running, queued, gpu_seconds, changes, most] = [0, 0, 0, 0, replicas.length]
  const waits: number[] = []
  let [sum, served] = [0, 0]
  for (let t = 0; t < day.seconds; t++) {
    const arrived = poisson(next, day.rate(t))
    if (arrived > 0) waiting.push({ arrived: t, count: arrived })
    queued += arrived
    const ready = replicas.filter((at) => at <= t).length
    const perReplica = running / Math.max(1, ready)
    const completed = ready === 0 ? 0 : Math.min(running, ready * rateOf(perReplica))
    running -= completed
    // In progress they slow each other down; what does not fit waits in order.
    let room = ready * costs.sequences - running
    while (room > 0 && waiting.length > 0) {
      const group = waiting[0]!
      const taken = Math.min(group.count, room)
      group.count -= taken
      room -= taken
      running += taken
      queued -= taken
      const slowed = Math.max(0, running / Math.max(1e-9, ready * rateOf(running / ready)) - atTarget_s)
      const wait = t - group.arrived + slowed
      sum += wait * taken
      served += taken
      // One sample for each ten requests.
      for (let n = 0; n < taken / 10; n++) waits.push(wait)
      if (group.count <= 0) waiting.shift()
    }
    gpu_seconds += replicas.length
    const from = replicas.length
    let to = from
    if (rule === 'Ray Serve') to = serve.decide(t, running + queued, from)
    else if (rule === 'Tunery') {
      const now = t * 1000
      const observation = {
        at: now,
        in_flight: running,
        waiting: queued,
        arrived,
        completed,
        utilization: null,
        ready,
        starting: from - ready,
      }
      addObservation(observations, observation, policy)
      const start_ms = costs.replica_start_s * 1000
      to = autoscale({ now, policy, observations, replicas: from, start_ms, decisions }).replicas
      if (to !== from)
        decisions = [...decisions.filter(({ at }) => at > now - decisionsKept_ms(policy)), { at: now, from, to }]
    }
    if (to === from) continue
    changes++
    for (let n = from; n < to; n++) replicas.push(t + costs.replica_start_s)
    // Those that start end first; requests of the others move on.
    replicas = replicas.toSorted((a, b) => a - b).slice(0, to)
    most = Math.max(most, to)
  }
  const sorted = Float64Array.from(waits).sort()
  return {
    gpu_seconds,
    wait: { mean: sum / Math.max(1, served), p95: quantile(sorted, 0.95), p99: quantile(sorted, 0.99) },
    changes,
    most,
  }
}

/**
 * Answers a second of a replica with n requests in progress: each step gives each of them a token, and the prompts of
 * those that come at the same rate take their part of the time.
 */
export function completionsOf(costs: Costs, prompt: number, tokens: number, withAdapters = true) {
  const { base_ms, sequence_ms, prompt_ms, lora_factor } = costs.step
  const factor = withAdapters ? lora_factor : 1
  return (n: number): number => {
    if (n <= 0) return 0
    // A request: its prompt, and its part of `tokens` steps.
    const step_ms = base_ms + sequence_ms * n
    return (1000 * n * factor) / (tokens * step_ms + n * prompt * prompt_ms)
  }
}
