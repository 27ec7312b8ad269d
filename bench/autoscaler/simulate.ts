// A deployment under load on a virtual clock: requests arrive, wait for a replica, share it, and a rule scales.
import { addObservation, type Observation, type ScalingPolicy } from '../../server/features/scaling/autoscaler.ts'

/** The load of a trace: requests and how long each takes on a replica that is not crowded. */
export interface Trace {
  name: string
  duration_s: number
  /** When requests come, in seconds, ascending. */
  arrivals: readonly number[]
  service_s: number
  start_s: number
  /** Where it differs from that of the comparison. */
  policy?: Partial<ScalingPolicy>
}

/** A rule that scales. `every_s`: how often it looks. */
export interface Rule {
  name: string
  every_s: number
  decide(now: number, observations: readonly Observation[], replicas: number): number
}

export interface Outcome {
  replica_seconds: number
  /** Seconds that requests took longer than on a replica of their own, on average and for 1 of 100. */
  mean_wait_s: number
  p99_wait_s: number
  /** Longest time in a row in which the ready replicas were too few for the load that came, in seconds. */
  longest_miss_s: number
  changes: { at: number; from: number; to: number }[]
}

const step_s = 0.5
/**
 * A target is missed while the load that comes, averaged over this time, is this many times what the replicas are for.
 */
const offeredWindow_s = 20
const missedFrom = 1.2

interface Request {
  arrived: number
  left: number
}

/**
 * Runs a trace. A replica works on up to twice its target of requests; beyond the target each becomes slower. Removed
 * replicas finish their requests, and cost until then.
 */
export function simulate(trace: Trace, policy: ScalingPolicy, rule: Rule): Outcome {
  const { target_requests: target, min_replicas } = policy
  interface Replica {
    ready_at: number
    requests: Request[]
    draining: boolean
  }
  const newReplica = (ready_at: number): Replica => ({ ready_at, requests: [], draining: false })
  let replicas = Array.from({ length: min_replicas }, () => newReplica(0))
  const queue: Request[] = []
  const waits: number[] = []
  const observations: Observation[] = []
  const changes: Outcome['changes'] = []
  let arrival = 0
  const offered = { from: 0, to: 0 }
  let seen = { arrived: 0, completed: 0 }
  let replica_seconds = 0
  let missing_since: number | undefined
  let longest_miss_s = 0
  let next = 0
  for (let t = 0; t < trace.duration_s; t += step_s) {
    for (; arrival < trace.arrivals.length && trace.arrivals[arrival]! <= t; arrival++)
      queue.push({ arrived: trace.arrivals[arrival]!, left: trace.service_s })
    const ready = replicas.filter((each) => !each.draining && each.ready_at <= t)
    while (queue.length > 0) {
      let free: Replica | undefined
      for (const each of ready)
        if (each.requests.length < 2 * target && (!free || each.requests.length < free.requests.length)) free = each
      if (!free) break
      free.requests.push(queue.shift()!)
    }
    let used = 0
    for (const each of replicas) {
      if (each.requests.length === 0) continue
      const speed = Math.min(1, target / each.requests.length)
      used += Math.min(1, each.requests.length / target)
      for (const request of each.requests) request.left -= step_s * speed
      const done = each.requests.filter(({ left }) => left <= 0)
      for (const request of done) waits.push(Math.max(0, t + step_s - request.arrived - trace.service_s))
      if (done.length > 0) each.requests = each.requests.filter(({ left }) => left > 0)
    }
    replicas = replicas.filter((each) => !each.draining || each.requests.length > 0)
    replica_seconds += replicas.length * step_s
    const asked = replicas.filter(({ draining }) => !draining)
    if (t % 1 === 0) {
      const observation = {
        at: t * 1000,
        arrived: arrival - seen.arrived,
        completed: waits.length - seen.completed,
        in_flight: asked.reduce((sum, each) => sum + each.requests.length, 0),
        waiting: queue.length,
        utilization: ready.length > 0 ? Math.min(1, used / ready.length) : null,
        ready: ready.length,
        starting: asked.length - ready.length,
      }
      addObservation(observations, observation, policy)
      seen = { arrived: arrival, completed: waits.length }
    }
    while (offered.from < trace.arrivals.length && trace.arrivals[offered.from]! < t - offeredWindow_s / 2)
      offered.from++
    while (offered.to < trace.arrivals.length && trace.arrivals[offered.to]! < t + offeredWindow_s / 2) offered.to++
    const load = ((offered.to - offered.from) / offeredWindow_s) * trace.service_s
    const isMissed = load > missedFrom * target * ready.length && ready.length < policy.max_replicas
    missing_since = isMissed ? (missing_since ?? t) : undefined
    if (missing_since !== undefined) longest_miss_s = Math.max(longest_miss_s, t - missing_since)
    if (t < next) continue
    next = t + rule.every_s
    const wanted = Math.max(
      min_replicas,
      Math.min(policy.max_replicas, rule.decide(t * 1000, observations, asked.length)),
    )
    if (wanted === asked.length) continue
    changes.push({ at: t, from: asked.length, to: wanted })
    for (let n = asked.length; n < wanted; n++) replicas.push(newReplica(t + trace.start_s))
    // Those that start go first, then those with the fewest requests.
    const leaving = asked
      .toSorted((a, b) => Number(a.ready_at <= t) - Number(b.ready_at <= t) || a.requests.length - b.requests.length)
      .slice(0, Math.max(0, asked.length - wanted))
    for (const each of leaving) each.draining = true
    replicas = replicas.filter((each) => !each.draining || each.requests.length > 0)
  }
  const sorted = waits.toSorted((a, b) => a - b)
  return {
    replica_seconds,
    mean_wait_s: waits.reduce((sum, each) => sum + each, 0) / Math.max(1, waits.length),
    p99_wait_s: sorted[Math.floor(sorted.length * 0.99)] ?? 0,
    longest_miss_s,
    changes,
  }
}
