// The autoscaler: a pure function from what was observed of a deployment to a number of replicas. It reads no clock and
// no state, so tests run it over days of load in a second. How it compares with other rules:
// docs/decisions/024-autoscaler.md.

/** How a deployment scales. */
export interface ScalingPolicy {
  min_replicas: number
  max_replicas: number
  /** Requests in progress or waiting that one replica should have. */
  target_requests: number
  /** Share of the time, 0 to 1, that a replica should compute. Null: utilization does not count. */
  target_utilization: number | null
  /** Least time from one scale-up to the next. */
  up_cooldown_ms: number
  /** Least time from any scaling to a scale-down. */
  down_cooldown_ms: number
}

/** What was seen of the deployment at one moment. */
export interface Observation {
  /** Milliseconds of any clock, the same for all. */
  at: number
  /** Requests that a replica works on. */
  in_flight: number
  /** Requests that wait for a replica. */
  waiting: number
  /** Requests that came, and answers that ended, since the last observation. */
  arrived: number
  completed: number
  /** Mean share of the time, 0 to 1, that the ready replicas computed since the last observation; null: unknown. */
  utilization: number | null
  ready: number
  starting: number
}

/** A former change of the number of replicas. */
export interface ScalingDecision {
  at: number
  from: number
  to: number
}

interface AutoscalerInput {
  now: number
  policy: ScalingPolicy
  /** Oldest first, at least those of `observationsKept_ms`. */
  observations: readonly Observation[]
  /** Number of replicas now, those that start included. */
  replicas: number
  /** Measured time from the decision to a replica that takes requests. */
  start_ms: number
  /** Oldest first. */
  decisions: readonly ScalingDecision[]
}

interface AutoscalerResult {
  replicas: number
  /** Why, as a sentence for people. */
  reason: string
}

/** Load of the last moments: a spike is known within this time. */
const spike_ms = 5_000
/** A spike is load beyond the chance that random arrivals have: this many standard deviations. */
const spikeDeviations = 2
/** Load beyond the target that adds no replica: noise around a boundary would cost a start each time. */
const tolerance = 0.1
/** Square-root staffing: standard deviations of random arrivals that the replicas have room for. */
const headroom = 1.5
/** A queue is to be gone this long after the replicas have started. */
const drain_ms = 40_000
/** A ramp is one if load grew in each of the last spans of this length. */
const rampSpan_ms = 20_000
/** Load that counts for scale-downs is averaged over this time. */
const smooth_ms = 15_000
/** The time that a request takes is measured over this time, from this many answers on. */
const measured = { ms: 300_000, answers: 5 }
/** Older observations are merged. */
const fine_ms = 3_600_000
/** Sums of fractions are not exact. */
const rounding = 1e-9
/** The window in which load must have been low, as a share of the cooldown; each regret doubles it, up to `most`. */
const quietShare = { least: 0.25, most: 4 }
/** A scale-down is a regret if a scale-up came this many cooldowns later; it is remembered for so many cooldowns. */
const regret = { within: 1.5, remembered: 12 }

/** How long observations are needed. */
const observationsKept_ms = ({ down_cooldown_ms }: Pick<ScalingPolicy, 'down_cooldown_ms'>) =>
  Math.max(quietShare.most * down_cooldown_ms + smooth_ms, measured.ms)
/**
 * Adds an observation, and forgets those that nothing needs any more. Old ones are merged, one for each `smooth_ms`, so
 * that a cooldown of a day costs little.
 */
export function addObservation(observations: Observation[], next: Observation, policy: ScalingPolicy): void {
  observations.push(next)
  let [old, end] = [0, observations.length]
  while (old < end) {
    const middle = Math.floor((old + end) / 2)
    if (observations[middle]!.at <= next.at - fine_ms) old = middle + 1
    else end = middle
  }
  const [earlier, last] = [observations[old - 2], observations[old - 1]]
  if (earlier && last && spanOf(earlier) === spanOf(last)) observations.splice(old - 2, 2, merged(earlier, last))
  while (observations[0]!.at < next.at - observationsKept_ms(policy)) observations.shift()
}

const spanOf = ({ at }: Observation) => Math.floor(at / smooth_ms)
const merged = (earlier: Observation, last: Observation): Observation => ({
  ...last,
  in_flight: Math.max(earlier.in_flight, last.in_flight),
  waiting: Math.max(earlier.waiting, last.waiting),
  arrived: earlier.arrived + last.arrived,
  completed: earlier.completed + last.completed,
})

/** How long decisions are needed. */
export const decisionsKept_ms = ({ down_cooldown_ms }: Pick<ScalingPolicy, 'down_cooldown_ms'>) =>
  (regret.remembered + regret.within) * down_cooldown_ms

/** How many replicas a deployment should have. */
export function autoscale(input: AutoscalerInput): AutoscalerResult {
  const { now, policy, replicas, decisions } = input
  const { min_replicas, max_replicas } = policy
  if (replicas < min_replicas) return { replicas: min_replicas, reason: `min_replicas is ${min_replicas}.` }
  if (replicas > max_replicas) return { replicas: max_replicas, reason: `max_replicas is ${max_replicas}.` }
  const up = scaleUp(input)
  if (up.replicas > replicas) {
    const last = decisions.findLast(({ from, to }) => to > from)
    const wait_ms = last ? last.at + policy.up_cooldown_ms - now : 0
    // The first request waits for nothing but the start.
    if (replicas === 0 || wait_ms <= 0) return { replicas: up.replicas, reason: up.reason }
    return { replicas, reason: `${up.reason} The next scale-up is due in ${seconds(wait_ms)}.` }
  }
  if (replicas === 0) return { replicas: 0, reason: 'No request.' }
  if (up.limited) return { replicas, reason: up.reason }
  return scaleDown(input)
}

function scaleUp(input: AutoscalerInput): Limited {
  const { now, policy, observations, replicas, start_ms } = input
  const { target_requests, up_cooldown_ms, max_replicas } = policy
  const last = observations.at(-1)
  const present = last ? requestsOf(last) : 0
  const rate = `at ${target_requests} a replica`
  // Nothing is known yet of a load that nobody serves.
  if (replicas === 0) {
    const needed = Math.ceil(present / target_requests)
    return limited(
      needed,
      `${requests(present)} ${rate} ${present === 1 ? 'takes' : 'take'} ${count(needed)}.`,
      max_replicas,
    )
  }
  const service_ms = serviceTimeOf(observations, policy, now)
  const within = (ms: number) => observations.filter(({ at }) => at > now - ms)
  const recent = within(spike_ms)
  const spike = loadOf(recent, service_ms)
  const long = within(Math.max(2 * spike_ms, up_cooldown_ms))
  const steady = loadOf(long, service_ms)
  const most = mostOf(long)
  const isSpike = recent.length > 3 && spike > replicas * target_requests + spikeDeviations * Math.sqrt(spike)
  const load = isSpike ? Math.max(spike, steady) : steady
  const growth = rampOf(observations, service_ms, now)
  // What load will be when the replica has started and until the next one may be added.
  const expected = load + growth * (start_ms + up_cooldown_ms / 2)
  const forLoad = staffed(expected, policy, most)
  const forQueue = last?.starting ? 0 : queueDemand(input, staffed(load, policy, most), service_ms)
  const byRequests = rounded(forLoad + forQueue, replicas)
  const busy = busyReplicas(recent)
  const forUtilization = policy.target_utilization === null ? 0 : busy / policy.target_utilization
  const byUtilization = rounded(forUtilization, replicas)
  const needed = Math.max(byRequests, byUtilization)
  if (byUtilization > byRequests) {
    const share = `${percent(busy / Math.max(1, last?.ready ?? 1))} of ${count(last?.ready ?? 0)} busy`
    return limited(
      needed,
      `${share}, target ${percent(policy.target_utilization!)}: that takes ${count(needed)}.`,
      max_replicas,
    )
  }
  const growing = Math.round(expected) > Math.round(load) ? `, growing to ${Math.round(expected)}` : ''
  const peak = Math.round(forLoad * target_requests)
  const chance = peak > Math.round(expected) ? `, up to ${peak} by chance,` : ''
  const queue = forQueue > tolerance ? ` and ${Math.round(Math.max(0, present - load))} queued` : ''
  return limited(
    needed,
    `${requests(load)} at a time${growing}${chance}${queue} ${rate} take ${count(needed)}.`,
    max_replicas,
  )
}

/** Replicas beyond those for the load, which work off what waits now and what will until they have started. */
function queueDemand(
  { policy, observations, replicas, start_ms }: AutoscalerInput,
  load: number,
  service_ms = drain_ms,
) {
  const last = observations.at(-1)
  if (!last) return 0
  const waiting = Math.max(0, requestsOf(last) / policy.target_requests - Math.max(load, replicas))
  const coming = Math.max(0, load - last.ready)
  return waiting * Math.min(1, service_ms / drain_ms) + (coming * start_ms) / drain_ms
}

interface Limited extends AutoscalerResult {
  /** Whether max_replicas is less than the load takes. */
  limited: boolean
}

const limited = (needed: number, reason: string, max_replicas: number): Limited =>
  needed <= max_replicas
    ? { replicas: needed, reason, limited: false }
    : { replicas: max_replicas, reason: `${reason} max_replicas is ${max_replicas}.`, limited: true }

function scaleDown({ now, policy, observations, replicas, decisions }: AutoscalerInput): AutoscalerResult {
  const { down_cooldown_ms, min_replicas, target_requests, target_utilization } = policy
  const steady = (reason: string) => ({ replicas, reason })
  const [first] = observations
  const last = observations.at(-1)
  if (replicas <= min_replicas) return steady(`The load takes no more, and min_replicas is ${min_replicas}.`)
  if (!first || !last) return steady('Nothing is known of its load yet.')
  const regrets = regretsOf(decisions, policy, now)
  const quiet_ms = down_cooldown_ms * Math.min(quietShare.most, quietShare.least * 2 ** regrets)
  const idle_ms = Math.max(quiet_ms, down_cooldown_ms)
  const counted = observations.filter(({ at }) => at > now - quiet_ms - smooth_ms)
  const peak = Math.max(
    requestsOf(last) / target_requests,
    staffed(peakOf(counted, now - quiet_ms, serviceTimeOf(observations, policy, now)), policy),
    target_utilization === null ? 0 : busyReplicas(counted) / target_utilization,
  )
  const isIdle = observations.every(
    (observation) =>
      (observation.at <= now - idle_ms && observation !== last) || requestsOf(observation) + observation.arrived === 0,
  )
  const needed = Math.max(min_replicas, isIdle ? 0 : Math.max(1, Math.ceil(peak - rounding)))
  if (needed >= replicas)
    return steady(
      min_replicas === 0 && replicas === 1
        ? `There were requests in the last ${seconds(idle_ms)}.`
        : `The load of the last ${seconds(quiet_ms)} takes ${count(replicas)}.`,
    )
  const quiet = isIdle ? idle_ms : quiet_ms
  const reason = isIdle
    ? `No request in the last ${seconds(quiet)}.`
    : `The load of the last ${seconds(quiet)} takes ${count(needed)}.`
  const wait_ms = Math.max(
    (decisions.at(-1)?.at ?? Number.NEGATIVE_INFINITY) + down_cooldown_ms - now,
    // After a restart nothing is known of the time before.
    first.at + Math.min(quiet, down_cooldown_ms) - now,
  )
  return wait_ms > 0
    ? { replicas, reason: `${reason} The next scale-down is due in ${seconds(wait_ms)}.` }
    : { replicas: needed, reason }
}

/**
 * Replicas for a load whose requests come at random: square-root staffing, but for no more than the `most` that were
 * there at once: a client that asks one by one needs no room for chance.
 */
const staffed = (load: number, { target_requests }: ScalingPolicy, most = Number.POSITIVE_INFINITY) =>
  Math.max(load, Math.min(load + headroom * Math.sqrt(load), most)) / target_requests

/** The most requests that were there at once. */
const mostOf = (observations: readonly Observation[]) =>
  observations.reduce((most, observation) => Math.max(most, requestsOf(observation)), 0)

const requestsOf = ({ in_flight, waiting }: Observation) => in_flight + waiting

/** Whole replicas for a demand. The number that there is suffices up to the tolerance. */
const rounded = (demand: number, replicas: number) =>
  demand > replicas && demand <= replicas * (1 + tolerance) ? replicas : Math.ceil(demand - rounding)

/** How many replicas were busy: the median of what is known. */
const busyReplicas = (observations: readonly Observation[]) =>
  median(observations.flatMap(({ utilization, ready }) => (utilization === null ? [] : [utilization * ready])))

/**
 * Milliseconds that a replica works on a request, with its target of requests at once; undefined before the first
 * answers. A crowded replica is taken to be no faster than one at its target.
 */
function serviceTimeOf(observations: readonly Observation[], { target_requests }: ScalingPolicy, now: number) {
  let worked = 0
  let completed = 0
  observations.forEach((observation, index) => {
    const before = observations[index - 1]
    if (!before || observation.at <= now - measured.ms) return
    worked += Math.min(observation.in_flight, target_requests * observation.ready) * (observation.at - before.at)
    completed += observation.completed
  })
  return completed < measured.answers ? undefined : worked / completed
}

/** Requests in progress if none had to wait: arrivals times the time that each takes, else those that are here. */
function loadOf(observations: readonly Observation[], service_ms: number | undefined): number {
  if (observations.length === 0) return 0
  if (service_ms === undefined || observations.length < 2) return mean(observations.map(requestsOf))
  const span = observations.at(-1)!.at - observations[0]!.at
  return (observations.slice(1).reduce((sum, observation) => sum + observation.arrived, 0) * service_ms) / span
}

/** Load by millisecond by which it has grown in each of the last spans, the least of them; 0: it did not. */
function rampOf(observations: readonly Observation[], service_ms: number | undefined, now: number): number {
  const levels = [0, 1, 2, 3].map((span) => {
    const end = now - span * rampSpan_ms
    return loadOf(
      observations.filter(({ at }) => at > end - rampSpan_ms && at <= end),
      service_ms,
    )
  })
  const [last, second, third, fourth] = levels as [number, number, number, number]
  return Math.max(0, Math.min(last - second, second - third, third - fourth)) / rampSpan_ms
}

/** How often the last scale-downs were followed by a scale-up too soon. */
function regretsOf(decisions: readonly ScalingDecision[], { down_cooldown_ms }: ScalingPolicy, now: number): number {
  return decisions.filter(({ at, from, to }, index) => {
    if (to >= from || at < now - regret.remembered * down_cooldown_ms) return false
    const next = decisions[index + 1]
    return next !== undefined && next.to > next.from && next.at - at < regret.within * down_cooldown_ms
  }).length
}

/** The highest load over a `smooth_ms` that ends after `from`. */
function peakOf(observations: readonly Observation[], from: number, service_ms: number | undefined): number {
  let peak = 0
  let arrived = 0
  let present = 0
  let first = 0
  observations.forEach((observation, index) => {
    arrived += observation.arrived
    present += requestsOf(observation)
    for (; observations[first]!.at <= observation.at - smooth_ms; first++) {
      arrived -= observations[first]!.arrived
      present -= requestsOf(observations[first]!)
    }
    if (observation.at <= from) return
    peak = Math.max(peak, service_ms === undefined ? present / (index - first + 1) : (arrived * service_ms) / smooth_ms)
  })
  return peak
}

const mean = (values: readonly number[]) => values.reduce((sum, value) => sum + value, 0) / values.length
function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b)
  return sorted[Math.floor(sorted.length / 2)] ?? 0
}

const count = (replicas: number) => `${replicas} replica${replicas === 1 ? '' : 's'}`
const requests = (load: number) => `${Math.round(load)} request${Math.round(load) === 1 ? '' : 's'}`
const percent = (share: number) => `${Math.round(share * 100)} %`
const seconds = (ms: number) => `${Math.max(1, Math.round(ms / 1000))} s`
