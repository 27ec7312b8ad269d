// All rules on all traces.
import type { ScalingPolicy } from '../../server/features/scaling/autoscaler.ts'
import { keda, rayServe, tunery } from './rules.ts'
import { type Outcome, simulate, type Trace } from './simulate.ts'

/** The same for all rules: cooldowns are delays to Ray Serve, and the one for scale-downs is HPA's window. */
export const policy: ScalingPolicy = {
  min_replicas: 1,
  max_replicas: 12,
  target_requests: 8,
  target_utilization: null,
  up_cooldown_ms: 30_000,
  down_cooldown_ms: 300_000,
}

export interface Row extends Outcome {
  trace: string
  rule: string
  policy: ScalingPolicy
}

/** A trace may have its own policy, such as no replica at night. */
export function compare(traces: readonly Trace[]): Row[] {
  return traces.flatMap((trace) => {
    const own = { ...policy, ...trace.policy }
    return [tunery(own, trace.start_s), rayServe(own), keda(own)].map((rule) => ({
      trace: trace.name,
      rule: rule.name,
      policy: own,
      ...simulate(trace, own, rule),
    }))
  })
}
