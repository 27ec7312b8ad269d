// A deployment under load on a virtual clock: requests arrive, wait for a replica, share it, and the autoscaler scales.
import {
  addObservation,
  autoscale,
  decisionsKept_ms,
  type Observation,
  type ScalingDecision,
  type ScalingPolicy,
} from '../../server/features/scaling/autoscaler.ts'
import type { Trace } from './scaling-traces.ts'

export interface Outcome {
  replica_seconds: number
  /** Seconds that requests took longer than on a replica of their own, on average. */
  mean_wait_s: number
  /** Longest time in a row in which the ready replicas were too few for the load that came, in seconds. */
  longest_miss_s: number
  changes: { at: number; from: number; to: number }[]
}

interface Request {
  arrived: number
  left: number
}

interface Replica {
  ready_at: number
  requests: Request[]
  draining: boolean
}

const step_s = 0.5
/**
 * A target is missed while the load that comes, averaged over this time, is this many times what the replicas are for.
 */
const offeredWindow_s = 20
const missedFrom = 1.2

/**
 * Runs a trace. A replica works on up to twice its target of requests; beyond the target each becomes slower. Removed
 * replicas finish their requests, and cost until then.
 */
export function simulate(trace: Trace, policy: ScalingPolicy, decide: typeof autoscale = autoscale): Outcome {
  const { target_requests: target, min_replicas } = policy
  const newReplica = (ready_at: number): Replica => ({ ready_at, requests: [], draining: false })
  let replicas = Array.from({ length: min_replicas }, () => newReplica(0))
  const queue: Request[] = []
  const waits: number[] = []
  const observations: Observation[] = []
  const changes: Outcome['changes'] = []
  let decisions: ScalingDecision[] = []
  let arrival = 0
  const offered = { from: 0, to: 0 }
  let seen = { arrived: 0, completed: 0 }
  let replica_seconds = 0
  let missing_since: number | undefined
  let longest_miss_s = 0
  for (let t = 0; t < trace.duration_s; t += step_s) {
    for (; arrival < trace.arrivals.length && trace.arrivals[arrival]! <= t; arrival++)
      queue.push({ arrived: trace.arrivals[arrival]!, left: trace.service_s })
    const ready = replicas.filter((replica) => !replica.draining && replica.ready_at <= t)
    while (queue.length > 0) {
      let free: Replica | undefined
      for (const replica of ready)
        if (replica.requests.length < 2 * target && (!free || replica.requests.length < free.requests.length))
          free = replica
      if (!free) break
      free.requests.push(queue.shift()!)
    }
    let used = 0
    for (const replica of replicas) {
      if (replica.requests.length === 0) continue
      const speed = Math.min(1, target / replica.requests.length)
      used += Math.min(1, replica.requests.length / target)
      for (const request of replica.requests) request.left -= step_s * speed
      const done = replica.requests.filter(({ left }) => left <= 0)
      for (const request of done) waits.push(Math.max(0, t + step_s - request.arrived - trace.service_s))
      if (done.length > 0) replica.requests = replica.requests.filter(({ left }) => left > 0)
    }
    replicas = replicas.filter((replica) => !replica.draining || replica.requests.length > 0)
    replica_seconds += replicas.length * step_s
    const asked = replicas.filter(({ draining }) => !draining)
    while (offered.from < trace.arrivals.length && trace.arrivals[offered.from]! < t - offeredWindow_s / 2)
      offered.from++
    while (offered.to < trace.arrivals.length && trace.arrivals[offered.to]! < t + offeredWindow_s / 2) offered.to++
    const load = ((offered.to - offered.from) / offeredWindow_s) * trace.service_s
    const isMissed = load > missedFrom * target * ready.length && ready.length < policy.max_replicas
    missing_since = isMissed ? (missing_since ?? t) : undefined
    if (missing_since !== undefined) longest_miss_s = Math.max(longest_miss_s, t - missing_since)
    if (t % 1 !== 0) continue
    const now = t * 1000
    const observation = {
      at: now,
      arrived: arrival - seen.arrived,
      completed: waits.length - seen.completed,
      in_flight: asked.reduce((sum, { requests }) => sum + requests.length, 0),
      waiting: queue.length,
      utilization: ready.length > 0 ? Math.min(1, used / ready.length) : null,
      ready: ready.length,
      starting: asked.length - ready.length,
    }
    addObservation(observations, observation, policy)
    seen = { arrived: arrival, completed: waits.length }
    const from = asked.length
    const start_ms = trace.start_s * 1000
    const { replicas: to } = decide({ now, policy, observations, replicas: from, start_ms, decisions })
    if (to === from) continue
    decisions = [...decisions.filter(({ at }) => at > now - decisionsKept_ms(policy)), { at: now, from, to }]
    changes.push({ at: t, from, to })
    for (let n = from; n < to; n++) replicas.push(newReplica(t + trace.start_s))
    // Those that start go first, then those with the fewest requests.
    const leaving = asked
      .toSorted((a, b) => Number(a.ready_at <= t) - Number(b.ready_at <= t) || a.requests.length - b.requests.length)
      .slice(0, Math.max(0, from - to))
    for (const replica of leaving) replica.draining = true
    replicas = replicas.filter((replica) => !replica.draining || replica.requests.length > 0)
  }
  const mean_wait_s = waits.reduce((sum, wait) => sum + wait, 0) / Math.max(1, waits.length)
  return { replica_seconds, mean_wait_s, longest_miss_s, changes }
}
