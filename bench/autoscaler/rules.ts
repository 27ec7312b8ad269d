// The rules that are compared: ours, and those of Ray Serve and of KEDA with Kubernetes' HPA as their sources state
// them.
import {
  autoscale,
  decisionsKept_ms,
  type Observation,
  type ScalingDecision,
  type ScalingPolicy,
} from '../../server/features/scaling/autoscaler.ts'
import type { Rule } from './simulate.ts'

export function tunery(policy: ScalingPolicy, start_s: number): Rule {
  let decisions: ScalingDecision[] = []
  return {
    name: 'Tunery',
    every_s: 1,
    decide(now, observations, replicas) {
      const result = autoscale({ now, policy, observations, replicas, start_ms: start_s * 1000, decisions })
      if (result.replicas !== replicas)
        decisions = [
          ...decisions.filter(({ at }) => at > now - decisionsKept_ms(policy)),
          { at: now, from: replicas, to: result.replicas },
        ]
      return result.replicas
    },
  }
}

/**
 * Ray Serve (python/ray/serve/autoscaling_policy.py): the mean of requests over `look_back_period_s`, divided by the
 * target; a change needs `upscale_delay_s` or `downscale_delay_s` of the same direction in a row; the last replica goes
 * after `downscale_to_zero_delay_s`; from zero it starts at once. Control loop: 0.1 s there, 0.5 s here. No smoothing
 * factors, as by default.
 */
export function rayServe(policy: ScalingPolicy, look_back_s = 30): Rule {
  const every_s = 0.5
  let counter = 0
  return {
    name: 'Ray Serve',
    every_s,
    decide(now, observations, replicas) {
      const total = meanSince(observations, now - look_back_s * 1000)
      if (replicas === 0) return (observations.at(-1)?.waiting ?? 0) > 0 ? 1 : 0
      const desired = bounded(Math.ceil(total / policy.target_requests - 1e-9), policy)
      if (desired > replicas) {
        counter = Math.max(0, counter) + 1
        if (counter <= policy.up_cooldown_ms / 1000 / every_s) return replicas
        counter = 0
        return desired
      }
      if (desired < replicas) {
        counter = Math.min(0, counter) - 1
        if (counter >= -policy.down_cooldown_ms / 1000 / every_s) return replicas
        counter = 0
        return replicas === 1 ? desired : Math.max(1, desired)
      }
      counter = 0
      return replicas
    },
  }
}

/**
 * Kubernetes' HPA (autoscaling/v2) on KEDA's metric of requests in total: every 15 s, 10 % tolerance, the highest
 * recommendation of the stabilization window for scale-downs, at most doubling or 4 more in 15 s. KEDA takes care of
 * zero: it looks every 30 s, and ends the last replica after its cooldown without requests.
 */
export function keda(policy: ScalingPolicy, { sync_s = 15, polling_s = 30 } = {}): Rule {
  const recommendations: { at: number; replicas: number }[] = []
  let active_at = 0
  let polled_at = Number.NEGATIVE_INFINITY
  return {
    name: 'KEDA and HPA',
    every_s: sync_s,
    decide(now, observations, replicas) {
      const last = observations.at(-1)
      const total = last ? last.in_flight + last.waiting : 0
      if (now - polled_at >= polling_s * 1000) {
        polled_at = now
        if (total > 0) active_at = now
        if (replicas === 0) return total > 0 ? 1 : 0
      }
      if (replicas === 0) return 0
      const ratio = total / (policy.target_requests * replicas)
      const raw = Math.abs(ratio - 1) <= 0.1 ? replicas : Math.ceil(total / policy.target_requests - 1e-9)
      recommendations.push({ at: now, replicas: raw })
      while (recommendations[0]!.at < now - policy.down_cooldown_ms) recommendations.shift()
      const stabilized =
        raw < replicas ? Math.min(replicas, Math.max(...recommendations.map((each) => each.replicas))) : raw
      if (policy.min_replicas === 0 && total === 0 && now - active_at >= policy.down_cooldown_ms) return 0
      // HPA itself keeps one.
      return bounded(Math.min(Math.max(1, stabilized), Math.max(2 * replicas, replicas + 4)), policy)
    },
  }
}

const bounded = (replicas: number, { min_replicas, max_replicas }: ScalingPolicy) =>
  Math.min(max_replicas, Math.max(min_replicas, replicas))

function meanSince(observations: readonly Observation[], from: number): number {
  let sum = 0
  let samples = 0
  for (let index = observations.length - 1; index >= 0 && observations[index]!.at > from; index--) {
    sum += observations[index]!.in_flight + observations[index]!.waiting
    samples++
  }
  return samples === 0 ? 0 : sum / samples
}
