// Keeps as many replicas of each deployment as the autoscaler asks for, in this server process: observes, decides, starts
// and drains.
import { stat } from 'node:fs/promises'
import { isDeepStrictEqual } from 'node:util'
import type { Logger } from 'pino'
import { ApiError } from '../../contract/errors.ts'
import { parseDuration, type ScalingPolicy as WirePolicy } from '../../contract/scaling.ts'
import { newId } from '../../lib/ids.ts'
import { runPeriodically } from '../../lib/periodic.ts'
import type { Deployments } from '../deployments/index.ts'
import {
  createReplicaSet,
  type Inference,
  type OwnReplica,
  type ReplicaSet,
  startOwnReplica,
  type Target,
  type VerifyReplica,
} from '../inference/index.ts'
import type { Artifacts } from '../storage/objects/index.ts'
import { addObservation, autoscale, decisionsKept_ms, type Observation, type ScalingPolicy } from './autoscaler.ts'
import type { ReadGpus } from './gpus.ts'
import type { Place, Places } from './places.ts'

const tick_ms = 1000
/** Until a start has been measured. */
const firstStart_ms = 10_000
/** A failed start is tried again after 1 s, then twice as long each time, up to this. */
const backOff_ms = { first: 1000, most: 60_000 }
/** Replicas that end by themselves within this time are started again with a back-off too. */
const deaths_ms = 60_000

/** A configured deployment, as its row says. */
export interface ScaledDeployment {
  id: string
  account_id: string
  name: string
  policy: WirePolicy
  instance_type: string
}

export interface Decision {
  deployment_id: string
  at: number
  from: number
  to: number
  reason: string
  in_flight: number
  waiting: number
}

export interface ScalingState {
  desired: number
  replicas: readonly OwnReplica[]
  in_flight: number
  waiting: number
  utilization: number | null
  reason: string | null
  limit: string | null
  error: string | null
}

export interface Controller {
  /** Begins to scale a deployment, or goes on by another configuration. */
  set(deployment: ScaledDeployment): void
  /** Stops scaling; its replicas end their requests. */
  remove(deployment_id: string): void
  ids(): string[]
  replicaSet(deployment_id: string): ReplicaSet | undefined
  state(deployment_id: string): ScalingState | undefined
  /** Ends all replicas. */
  close(): Promise<void>
}

interface Options {
  artifacts: Pick<Artifacts, 'ensureLocal' | 'hold'>
  dataDir: string
  engine_options: readonly string[]
  waiting_max: number
  inference: Pick<Inference, 'target'>
  deployments: Pick<Deployments, 'byId'>
  places: Places
  gpus: ReadGpus
  verify: VerifyReplica
  /** Tells what yields its cores to trainings of a replica; returns what ends that. */
  yieldsToo: (engine: OwnReplica['engine']) => () => void
  record: (decision: Decision) => Promise<void>
  now: () => number
  log: Logger
}

interface Entry {
  deployment: ScaledDeployment
  policy: ScalingPolicy
  set: ReplicaSet
  places: Map<OwnReplica, Place>
  /** Replicas whose end was asked for. */
  leaving: Set<OwnReplica>
  desired: number
  observations: Observation[]
  decisions: Decision[]
  counted: { arrived: number; completed: number; cpu: Map<OwnReplica, { at: number; cpu_ms: number }> }
  start_ms: number
  failures: number
  deaths: number[]
  retry_at: number
  utilization: number | null
  reason: string | null
  limit: string | null
  error: ApiError | null
  running: Promise<void> | undefined
  again: boolean
  removed: boolean
  /** It has no replica, and another gives it a place. */
  isStarving: boolean
}

export function createController(options: Options): Controller {
  const {
    artifacts,
    dataDir,
    engine_options,
    waiting_max,
    inference,
    deployments,
    places,
    gpus,
    verify,
    yieldsToo,
    record,
  } = options
  const { now, log } = options
  const entries = new Map<string, Entry>()
  const stopping = new AbortController()
  let task: ReturnType<typeof runPeriodically> | undefined

  const activeOf = (entry: Entry) =>
    entry.set
      .replicas()
      .filter((each) => !entry.leaving.has(each) && (each.state() === 'starting' || each.state() === 'ready'))
  /** Those on the class that is configured now. */
  const fittingOf = (entry: Entry) =>
    activeOf(entry).filter((each) => entry.places.get(each)?.class === entry.deployment.instance_type)

  function create(deployment: ScaledDeployment): Entry {
    const entry: Entry = {
      deployment,
      policy: policyOf(deployment.policy),
      set: createReplicaSet({
        waiting_max,
        onDemand() {
          if (activeOf(entry).length > 0) return
          if (entry.error && now() < entry.retry_at) throw entry.error
          // When the request is in the queue.
          setImmediate(() => void step(entry))
        },
        isGrowing: () => !entry.removed && !stopping.signal.aborted && entry.failures === 0,
        onEnded: (replica) => onEnded(entry, replica),
      }),
      places: new Map(),
      leaving: new Set(),
      desired: 0,
      observations: [],
      decisions: [],
      counted: { arrived: 0, completed: 0, cpu: new Map() },
      start_ms: firstStart_ms,
      failures: 0,
      deaths: [],
      retry_at: 0,
      utilization: null,
      reason: null,
      limit: null,
      error: null,
      running: undefined,
      again: false,
      removed: false,
      isStarving: false,
    }
    return entry
  }

  /** Observes, decides and acts; one at a time for a deployment. */
  function step(entry: Entry): Promise<void> {
    if (entry.running) {
      entry.again = true
      return entry.running
    }
    entry.running = act(entry)
      .catch((error) => log.error({ err: error, deployment: entry.deployment.id }, 'scaling a deployment failed'))
      .finally(() => {
        entry.running = undefined
        if (!entry.again) return
        entry.again = false
        setImmediate(() => void step(entry))
      })
    return entry.running
  }

  async function act(entry: Entry): Promise<void> {
    if (entry.removed || stopping.signal.aborted) return
    await observe(entry)
    const { deployment, policy, observations, decisions, start_ms } = entry
    const room = await roomFor(entry)
    const bounded = {
      ...policy,
      min_replicas: Math.min(policy.min_replicas, Math.max(1, room)),
      // Without room for one, another deployment may give a place.
      max_replicas: Math.min(policy.max_replicas, Math.max(1, room)),
    }
    const at = now()
    const result = autoscale({ now: at, policy: bounded, observations, replicas: entry.desired, start_ms, decisions })
    entry.reason = result.reason
    entry.limit =
      room < policy.max_replicas
        ? `This machine has room for ${room} of the ${policy.max_replicas} replicas of max_replicas on the class ` +
          `${deployment.instance_type} now.`
        : null
    if (result.replicas !== entry.desired) await decide(entry, result.replicas, result.reason)
    await reconcile(entry)
  }

  /** Places that it has or may take. What becomes free belongs to deployments without any first. */
  async function roomFor(entry: Entry): Promise<number> {
    const { id, instance_type } = entry.deployment
    const room = await places.room(instance_type, id)
    const own = [...entry.places.values()].filter((place) => place.class === instance_type).length
    const starving = [...entries.values()].filter(
      (other) => other !== entry && other.isStarving && other.deployment.instance_type === instance_type,
    )
    return Math.max(own, room - starving.length)
  }

  async function decide(entry: Entry, to: number, reason: string): Promise<void> {
    const { in_flight, waiting } = entry.set.counts()
    const from = entry.desired
    const decision = { deployment_id: entry.deployment.id, at: now(), from, to, reason, in_flight, waiting }
    entry.desired = to
    const kept_ms = decisionsKept_ms(entry.policy)
    entry.decisions = [...entry.decisions.filter(({ at }) => at > decision.at - kept_ms), decision]
    log.info({ deployment: entry.deployment.id, from, to, reason }, 'a deployment scales')
    await record(decision).catch((error) => log.warn({ err: error }, 'a scaling decision could not be stored'))
  }

  async function observe(entry: Entry): Promise<void> {
    const { set, policy, counted } = entry
    const { in_flight, waiting, arrived, completed } = set.counts()
    const serving = activeOf(entry).filter((each) => each.state() === 'ready')
    entry.utilization = policy.target_utilization === null ? null : await utilizationOf(entry, serving)
    const at = now()
    const observation = {
      at,
      in_flight,
      waiting,
      arrived: arrived - counted.arrived,
      completed: completed - counted.completed,
      utilization: entry.utilization,
      ready: serving.length,
      starting: activeOf(entry).length - serving.length,
    }
    addObservation(entry.observations, observation, policy)
    Object.assign(counted, { arrived, completed })
  }

  /** Mean share of the time that these replicas computed since the last look; null if that is not known. */
  async function utilizationOf({ places, counted }: Entry, serving: OwnReplica[]): Promise<number | null> {
    const onGpus = serving.some((each) => places.get(each)?.gpu) ? await gpus() : []
    const shares = await Promise.all(
      serving.map(async (each) => {
        const gpu = places.get(each)?.gpu
        if (gpu) return onGpus.find(({ uuid }) => uuid === gpu.uuid)?.utilization ?? undefined
        const cpu_ms = await each.cpu_ms()
        const before = counted.cpu.get(each)
        if (cpu_ms === undefined) return undefined
        const at = performance.now()
        counted.cpu.set(each, { at, cpu_ms })
        return before && Math.min(1, (cpu_ms - before.cpu_ms) / ((at - before.at) * each.placement.threads))
      }),
    )
    const known = shares.filter((each) => each !== undefined)
    return known.length === 0 ? null : known.reduce((sum, each) => sum + each, 0) / known.length
  }

  async function reconcile(entry: Entry): Promise<void> {
    while (fittingOf(entry).length < entry.desired && now() >= entry.retry_at && !entry.removed) {
      const { deployment } = entry
      const wanted = await wantedOf(entry).catch((error) => onStartFailed(entry, error))
      if (!wanted) return
      const { target, bytes } = wanted
      const place = await places.take(deployment.instance_type, deployment.id, bytes)
      if ('refused' in place) {
        entry.limit = place.refused
        if (activeOf(entry).length > 0) return
        entry.isStarving = await takeFromAnother(entry)
        if (!entry.isStarving) refuseWaiting(entry, place.refused)
        return
      }
      entry.isStarving = false
      if (entry.removed) return place.release()
      start(entry, target, place)
    }
    const fitting = fittingOf(entry)
    // Replicas of a former class serve until those of the new one do.
    const serving = fitting.filter((each) => each.state() === 'ready').length
    const old = serving >= entry.desired ? activeOf(entry).filter((each) => !fitting.includes(each)) : []
    const surplus = fitting
      .toSorted((a, b) => Number(a.state() === 'ready') - Number(b.state() === 'ready') || a.inFlight - b.inFlight)
      .slice(0, Math.max(0, fitting.length - entry.desired))
    for (const each of [...old, ...surplus]) drain(entry, each)
  }

  function drain(entry: Entry, replica: OwnReplica): void {
    entry.leaving.add(replica)
    void replica
      .drain()
      .catch((error) => log.error({ err: error, replica: replica.id }, 'a replica could not be ended'))
  }

  /** The weights that the deployment serves now, on this machine, and their size. */
  async function wantedOf({ deployment }: Entry): Promise<{ target: Target; bytes: number }> {
    const current = await deployments.byId(deployment.id)
    if (!current) throw new ApiError('deployment_not_found', `There is no deployment '${deployment.name}'.`)
    const target = await inference.target(current.account_id, current.model)
    return { target, bytes: await bytesOf(target, artifacts) }
  }

  function start(entry: Entry, target: Target, place: Place): void {
    const { deployment } = entry
    const replica = startOwnReplica({
      id: newId('rep'),
      deployment_id: deployment.id,
      placement: place.placement,
      target,
      artifacts,
      dataDir,
      engine_options,
      verify,
      max_concurrent: () => 2 * entry.policy.target_requests,
      onChange: () => entry.set.dispatchWaiting(),
      now,
      log,
    })
    entry.places.set(replica, place)
    entry.set.add(replica)
    const stopYielding = yieldsToo(replica.engine)
    void replica.ended.then(() => {
      stopYielding()
      place.release()
      for (const other of entries.values()) if (other.isStarving) void step(other)
    })
    replica.ready.then(
      () => {
        place.isRunning = true
        const took_ms = replica.ready_at()! - replica.started_at
        entry.start_ms = entry.start_ms === firstStart_ms ? took_ms : (entry.start_ms + took_ms) / 2
        entry.failures = 0
        entry.error = null
        entry.set.dispatchWaiting()
      },
      (error: Error) => {
        if (!entry.leaving.has(replica) && !entry.removed) onStartFailed(entry, error)
      },
    )
  }

  function backOff(entry: Entry, failures: number): number {
    const wait_ms = Math.min(backOff_ms.most, backOff_ms.first * 2 ** (failures - 1))
    entry.retry_at = now() + wait_ms
    return wait_ms
  }

  function onStartFailed(entry: Entry, cause: Error): undefined {
    const wait_ms = backOff(entry, ++entry.failures)
    const message =
      `No replica of '${entry.deployment.name}' could be started: ${cause.message.replace(/\.?$/, '.')} ` +
      `The next try is in ${Math.ceil(wait_ms / 1000)} s.`
    entry.error = cause instanceof ApiError ? cause.with({ message }) : new ApiError('engine_unavailable', message)
    log.error({ err: cause, deployment: entry.deployment.id, wait_ms }, 'a replica could not be started')
    if (activeOf(entry).length === 0) entry.set.refuseWaiting(entry.error)
  }

  function refuseWaiting(entry: Entry, why: string): void {
    const { name } = entry.deployment
    entry.set.refuseWaiting(
      new ApiError('overloaded', `There is no room for a replica of '${name}' now: ${why} Try again later.`, {
        details: { retry_after_seconds: 30 },
      }),
    )
  }

  /** A deployment without any replica gets the place of one that has several. Returns whether one becomes free. */
  async function takeFromAnother(entry: Entry): Promise<boolean> {
    if (entry.set.counts().waiting === 0) return false
    const { instance_type } = entry.deployment
    const others = [...entries.values()].filter(
      (other) => other !== entry && other.deployment.instance_type === instance_type,
    )
    // One that leaves already will do.
    if (others.some((other) => other.leaving.size > 0)) return true
    const rich = others
      .filter((other) => other.desired > Math.max(1, other.policy.min_replicas) && fittingOf(other).length > 1)
      .toSorted((a, b) => b.desired - a.desired)
      .at(0)
    if (!rich) return false
    await decide(rich, rich.desired - 1, 'Gave a place to a deployment that had no replica.')
    void step(rich)
    return true
  }

  function onEnded(entry: Entry, replica: OwnReplica): void {
    const wasAsked = entry.leaving.delete(replica)
    entry.places.delete(replica)
    entry.counted.cpu.delete(replica)
    if (wasAsked || entry.removed || stopping.signal.aborted) return
    if (replica.ready_at() !== undefined) {
      log.warn({ deployment: entry.deployment.id, replica: replica.id }, 'a replica ended by itself')
      entry.deaths = [...entry.deaths.filter((at) => at > now() - deaths_ms), now()]
      if (entry.deaths.length > 2) backOff(entry, entry.deaths.length - 2)
    }
    void step(entry)
  }

  function tick(): Promise<void> {
    // Not awaited: a deployment whose replicas hang must not stop the others.
    for (const entry of entries.values()) void step(entry)
    return Promise.resolve()
  }

  return {
    set(deployment) {
      const existing = entries.get(deployment.id)
      const entry = existing ?? create(deployment)
      if (!existing) entries.set(deployment.id, entry)
      else if (!isDeepStrictEqual(existing.deployment, deployment))
        Object.assign(existing, { deployment, policy: policyOf(deployment.policy), retry_at: 0, failures: 0 })
      task ??= runPeriodically(tick_ms, tick, { delayed: true })
      void step(entry)
    },

    remove(deployment_id) {
      const entry = entries.get(deployment_id)
      if (!entry) return
      entries.delete(deployment_id)
      entry.removed = true
      entry.set.refuseWaiting(
        new ApiError('overloaded', 'The deployment has just stopped scaling. Send the request once more.'),
      )
      for (const each of activeOf(entry)) drain(entry, each)
    },

    ids: () => [...entries.keys()],
    replicaSet: (deployment_id) => entries.get(deployment_id)?.set,

    state(deployment_id) {
      const entry = entries.get(deployment_id)
      if (!entry) return undefined
      const { in_flight, waiting } = entry.set.counts()
      const { desired, utilization, reason, limit, error } = entry
      const replicas = entry.set.replicas().filter((each) => each.state() !== 'ended')
      return { desired, replicas, in_flight, waiting, utilization, reason, limit, error: error?.message ?? null }
    },

    async close() {
      stopping.abort()
      await task?.close()
      await Promise.all([...entries.values()].map(({ set }) => set.close()))
    },
  }
}

/** The contract's policy in the autoscaler's units. */
export const policyOf = (policy: WirePolicy): ScalingPolicy => ({
  min_replicas: policy.min_replicas,
  max_replicas: policy.max_replicas,
  target_requests: policy.target_requests_per_replica,
  target_utilization: policy.target_gpu_utilization == null ? null : policy.target_gpu_utilization / 100,
  up_cooldown_ms: parseDuration(policy.scale_up_cooldown),
  down_cooldown_ms: parseDuration(policy.scale_down_cooldown),
})

/** Sizes of the files that a replica reads, in bytes; fetches those that are not on this machine. */
async function bytesOf({ base, adapter }: Target, artifacts: Pick<Artifacts, 'ensureLocal'>): Promise<number> {
  for (const file of [base.gguf!, ...(adapter ? [adapter.gguf] : [])]) await artifacts.ensureLocal(file)
  const size = async (file: string) => (await stat(file).catch(() => undefined))?.size ?? 0
  const copy = base.gguf!.replace(/\.gguf$/, '.eight-bits.gguf')
  return Math.max(await size(base.gguf!), await size(copy)) + (adapter ? await size(adapter.gguf) : 0)
}
