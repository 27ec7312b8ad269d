// Requests to the replicas of one base, on a virtual clock: arrivals at several gateways, each of which chooses a
// replica by the requests that it sees itself, with the service's own functions.

import { type Candidate, leastLoaded, withAffinity } from '../../server/features/serving/replicas/choice.ts'
import { createWaitingList } from '../../server/features/serving/replicas/waiting-list.ts'
import { seededRandom } from '../../tests/support/random.ts'
import type { Costs } from './costs.ts'
import { exponential, geometric, quantile, sampler } from './random.ts'
import { Replica, type Request } from './replica.ts'

/** `hashing`: one replica for each adapter, however busy it is. `multiplexed`: as Ray Serve, see `multiplexed`. */
export type Policy = 'least loaded' | 'hashing' | 'affinity' | 'multiplexed'

export interface Load {
  /** Requests a second, and the share of each adapter. */
  rate: number
  adapters: readonly number[]
  prompt: number
  tokens: number
  seconds: number
  /** Not measured: the caches fill, without delay in its first half. */
  warmup: number
  seed: number
}

export interface Served {
  requests: number
  refused: number
  hit_rate: number
  /** Adapters loaded a second, by all replicas. */
  loads: number
  /** Seconds. */
  queue: { p50: number; p95: number }
  first_token: { p50: number; p95: number; p99: number }
  latency: { mean: number; p95: number }
  /** Requests in progress of a replica, mean over replicas and time. */
  in_progress: number
  /** Answers that ended, a second. */
  answered: number
  /** Sorted, in seconds. */
  samples: { queue: Float64Array; first_token: Float64Array }
}

/** The queue of a pool (TUNERY_MAX_WAITING). */
const waiting_max = 256
/** With so many refused it is overloaded: the rest of the run would show the same. */
const refused_max = 500
const overloaded_s = 5
/** Requests that Ray Serve gives a replica (max_ongoing_requests): twice the target. */
const ongoing_max = 64

export function serve(
  replicas: number,
  policy: Policy,
  load: Load,
  costs: Costs,
  gateways: number,
  slots = true,
): Served {
  const next = seededRandom(load.seed)
  const pick = sampler(load.adapters)
  const fleet = Array.from({ length: replicas }, (_, index) => new Replica(`replica ${index}`, costs, gateways, slots))
  const bySeen = new Map<Candidate, Replica>(
    fleet.flatMap((replica) => replica.seen.map((seen) => [seen, replica] as const)),
  )
  const views = Array.from({ length: gateways }, (_, gateway) => fleet.map(({ seen }) => seen[gateway]!))
  const queues = views.map(() => createWaitingList<Request & { account_id: string; background: boolean }>(waiting_max))
  const names = load.adapters.map((_, index) => `model_${index + 1}`)
  let rotation = 0
  const done: Request[] = []
  const latencies: number[] = []
  let [refused, inProgress, present, last, loadsBefore, answers] = [0, 0, 0, 0, 0, 0]

  function choose(gateway: number, request: Request): Candidate | undefined {
    const view = views[gateway]!
    if (policy === 'least loaded' || request.adapter === 0) return leastLoaded(view, rotation++)
    if (policy === 'affinity') return withAffinity(view, names[request.adapter - 1]!)
    if (policy === 'multiplexed') return multiplexed(view, request.adapter)
    // Alone, the only candidate is the one that the hash chooses.
    const idle = view.map(({ name, max_concurrent }) => ({ name, max_concurrent, inFlight: 0 }))
    const chosen = hashed.get(request.adapter) ?? idle.indexOf(withAffinity(idle, names[request.adapter - 1]!)!)
    hashed.set(request.adapter, chosen)
    return view[chosen]
  }
  const hashed = new Map<number, number>()

  /**
   * The less busy of two random ones of those that have the adapter, else of those with the fewest adapters; none takes
   * more than `ongoing_max`.
   */
  function multiplexed(view: readonly Candidate[], adapter: number): Candidate {
    const replicaOf = (seen: Candidate) => bySeen.get(seen)!
    const free = view.filter((seen) => replicaOf(seen).present < ongoing_max)
    const all = free.length > 0 ? free : view
    const having = all.filter((seen) => replicaOf(seen).has(adapter))
    const fewest = Math.min(...all.map((seen) => replicaOf(seen).adapters))
    const from = having.length > 0 ? having : all.filter((seen) => replicaOf(seen).adapters === fewest)
    const two = [from[Math.floor(next() * from.length)]!, from[Math.floor(next() * from.length)]!]
    return replicaOf(two[0]!).present <= replicaOf(two[1]!).present ? two[0]! : two[1]!
  }

  function send(request: Request, seen: Candidate, now: number): void {
    seen.inFlight++
    present++
    queues[request.gateway]!.begin(request.account)
    const replica = bySeen.get(seen)!
    const wasIdle = replica.stepEnds === Number.POSITIVE_INFINITY
    replica.send(request, now)
    if (wasIdle) steps.push(replica)
  }

  const steps = new Heap()
  let [begin, end] = [load.warmup, load.warmup + load.seconds]
  let [measuring, warming] = [false, true]
  for (const replica of fleet) replica.warming = true
  let arrival = exponential(next, 1 / load.rate)
  for (;;) {
    const now = Math.min(arrival, steps.top?.stepEnds ?? Number.POSITIVE_INFINITY)
    if (now >= end) break
    if (measuring) inProgress += present * (now - last)
    last = now
    if (warming && now >= load.warmup / 2) {
      warming = false
      for (const replica of fleet) replica.warming = false
    }
    if (!measuring && now >= begin) {
      measuring = true
      for (const replica of fleet) loadsBefore += replica.loads
    }
    if (arrival <= now) {
      const adapter = pick(next) + 1
      const request = {
        adapter,
        gateway: Math.floor(next() * gateways),
        arrived: now,
        prompt: load.prompt,
        tokens: geometric(next, load.tokens),
        account: `account ${adapter}`,
        account_id: `account ${adapter}`,
        background: false,
        first: -1,
        hit: false,
        sent: now,
        begun: now,
      }
      const queue = queues[request.gateway]!
      const seen = queue.length === 0 ? choose(request.gateway, request) : undefined
      if (seen && seen.inFlight < seen.max_concurrent) send(request, seen, now)
      else if (queue.add(request)) {
        refused++
        if (refused === refused_max && now + overloaded_s < end) {
          begin = Math.min(begin, now)
          end = now + overloaded_s
        }
      }
      arrival += exponential(next, 1 / load.rate)
      continue
    }
    const replica = steps.pop()!
    const ended = replica.endStep(now)
    if (replica.stepEnds < Number.POSITIVE_INFINITY) steps.push(replica)
    present -= ended.length
    if (measuring) answers += ended.length
    for (const request of ended) {
      const queue = queues[request.gateway]!
      replica.seen[request.gateway]!.inFlight--
      queue.end(request.account)
      if (request.arrived >= begin) {
        done.push(request)
        latencies.push(now - request.arrived)
      }
      if (queue.length === 0) continue
      for (const waiter of queue.inOrder()) {
        const seen = choose(request.gateway, waiter)
        if (!seen || seen.inFlight >= seen.max_concurrent) break
        queue.remove(waiter)
        send(waiter, seen, now)
      }
    }
  }
  // Requests that still wait have waited at least until now.
  const open = [...fleet.flatMap((replica) => replica.unbegun()), ...queues.flatMap((queue) => queue.inOrder())]
    .filter(({ arrived }) => arrived >= begin)
    .map(({ arrived }) => end - arrived)
  const sorted = (value: (request: Request) => number) => Float64Array.from([...done.map(value), ...open]).sort()
  const queue = sorted(({ arrived, begun }) => begun - arrived)
  const first = sorted(({ arrived, first }) => first - arrived)
  const measured_s = end - begin
  const whole = Float64Array.from(latencies).sort()
  return {
    requests: done.length,
    refused,
    hit_rate: done.filter(({ hit }) => hit).length / Math.max(1, done.length),
    loads: (fleet.reduce((sum, { loads }) => sum + loads, 0) - loadsBefore) / measured_s,
    queue: { p50: quantile(queue, 0.5), p95: quantile(queue, 0.95) },
    first_token: { p50: quantile(first, 0.5), p95: quantile(first, 0.95), p99: quantile(first, 0.99) },
    latency: {
      mean: whole.reduce((sum, value) => sum + value, 0) / Math.max(1, whole.length),
      p95: quantile(whole, 0.95),
    },
    in_progress: inProgress / measured_s / replicas,
    answered: answers / measured_s,
    samples: { queue, first_token: first },
  }
}

/** Replicas by the end of their step, the earliest first. */
class Heap {
  private readonly items: Replica[] = []

  get top(): Replica | undefined {
    return this.items[0]
  }

  push(replica: Replica): void {
    const { items } = this
    let index = items.push(replica) - 1
    while (index > 0) {
      const parent = (index - 1) >> 1
      if (items[parent]!.stepEnds <= replica.stepEnds) break
      items[index] = items[parent]!
      index = parent
    }
    items[index] = replica
  }

  pop(): Replica | undefined {
    const { items } = this
    const [first] = items
    const last = items.pop()
    if (items.length === 0 || !last) return first
    let index = 0
    for (;;) {
      let child = 2 * index + 1
      if (child >= items.length) break
      if (child + 1 < items.length && items[child + 1]!.stepEnds < items[child]!.stepEnds) child++
      if (items[child]!.stepEnds >= last.stepEnds) break
      items[index] = items[child]!
      index = child
    }
    items[index] = last
    return first
  }
}
