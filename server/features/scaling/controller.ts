// Decides how many replicas each deployment has in this server process: observes, asks the autoscaler, and lets the
// reconciler start and drain.

import { isDeepStrictEqual } from 'node:util'
import { ApiError } from '../../../contract/errors.ts'
import { parseDuration, type ScalingPolicy as WirePolicy } from '../../../contract/scaling.ts'
import { runPeriodically } from '../../../lib/periodic.ts'
import { createReplicaSet, type OwnReplica, type ServingSet } from '../serving/index.ts'
import { addObservation, autoscale, decisionsKept_ms, type ScalingPolicy } from './autoscaler.ts'
import type { ReadGpus } from './gpus.ts'
import { firstStart_ms, Reconciler, type ReconcilerOptions } from './reconciler.ts'
import { activeOf, type Decision, type Entry, type ScaledDeployment } from './scaled-deployment.ts'

const tick_ms = 1000

interface ScalingState {
  desired: number
  replicas: readonly OwnReplica[]
  in_flight: number
  waiting: number
  utilization: number | null
  reason: string | null
  limit: string | null
  error: string | null
}

interface Options extends ReconcilerOptions {
  waiting_max: number
  gpus: ReadGpus
  servingSets: Map<string, ServingSet>
  record: (decision: Decision) => Promise<void>
}

export class Controller {
  private readonly options: Options
  private readonly entries = new Map<string, Entry>()
  private readonly stopping = new AbortController()
  private readonly reconciler: Reconciler
  private task: ReturnType<typeof runPeriodically> | undefined

  constructor(options: Options) {
    this.options = options
    this.reconciler = new Reconciler(options, {
      entries: this.entries,
      step: (entry) => this.step(entry),
      decide: (entry, to, reason) => this.decide(entry, to, reason),
      isStopping: () => this.isStopping(),
    })
  }

  /** Begins to scale a deployment, or continues with another configuration. */
  set(deployment: ScaledDeployment): void {
    const existing = this.entries.get(deployment.id)
    const entry = existing ?? this.create(deployment)
    if (!existing) {
      this.entries.set(deployment.id, entry)
      this.options.servingSets.set(deployment.id, entry.set)
    } else if (!isDeepStrictEqual(existing.deployment, deployment))
      Object.assign(existing, { deployment, policy: policyOf(deployment.policy), retry_at: 0, failures: 0 })
    this.task ??= runPeriodically(tick_ms, () => this.tick(), { delayed: true })
    void this.step(entry)
  }

  /** Stops scaling; its replicas end their requests. */
  remove(deployment_id: string): void {
    const entry = this.entries.get(deployment_id)
    if (!entry) return
    this.entries.delete(deployment_id)
    this.options.servingSets.delete(deployment_id)
    entry.removed = true
    entry.set.refuseWaiting(
      new ApiError('overloaded', 'The deployment has just stopped scaling. Send the request once more.'),
    )
    for (const replica of activeOf(entry)) this.reconciler.drain(entry, replica)
  }

  ids(): string[] {
    return [...this.entries.keys()]
  }

  state(deployment_id: string): ScalingState | undefined {
    const entry = this.entries.get(deployment_id)
    if (!entry) return undefined
    const { in_flight, waiting } = entry.set.counts()
    const { desired, utilization, reason, limit, error } = entry
    const replicas = entry.set.replicas().filter((replica) => replica.state() !== 'ended')
    return { desired, replicas, in_flight, waiting, utilization, reason, limit, error: error?.message ?? null }
  }

  /** The metrics of each replica's engine, by its place on the machine: these are few, whatever scales. */
  metrics(): Promise<{ engine: string; text: string | undefined }[]> {
    return Promise.all(
      [...this.entries.values()]
        .flatMap(({ places }) => [...places])
        .map(async ([replica, { slot }]) => ({ engine: slot, text: await replica.engine.read('/metrics') })),
    )
  }

  /** Ends all replicas. */
  async close(): Promise<void> {
    this.stopping.abort()
    await this.task?.close()
    await Promise.all([...this.entries.values()].map(({ set }) => set.close()))
  }

  private isStopping() {
    return this.stopping.signal.aborted
  }

  private create(deployment: ScaledDeployment): Entry {
    const { waiting_max, now } = this.options
    const entry: Entry = {
      deployment,
      policy: policyOf(deployment.policy),
      set: createReplicaSet({
        waiting_max,
        onDemand: () => {
          if (activeOf(entry).length > 0) return
          if (entry.error && now() < entry.retry_at) throw entry.error
          // When the request is in the queue.
          setImmediate(() => void this.step(entry))
        },
        isGrowing: () => !entry.removed && !this.isStopping() && entry.failures === 0,
        onEnded: (replica) => this.reconciler.onEnded(entry, replica),
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
  private step(entry: Entry): Promise<void> {
    if (entry.running !== undefined) {
      entry.again = true
      return entry.running
    }
    entry.running = this.act(entry)
      .catch((error) =>
        this.options.log.error({ err: error, deployment: entry.deployment.id }, 'scaling a deployment failed'),
      )
      .finally(() => {
        entry.running = undefined
        if (!entry.again) return
        entry.again = false
        setImmediate(() => void this.step(entry))
      })
    return entry.running
  }

  private async act(entry: Entry): Promise<void> {
    const { now } = this.options
    if (entry.removed || this.isStopping()) return
    await this.observe(entry)
    const { deployment, policy, observations, decisions, start_ms } = entry
    const room = await this.roomFor(entry)
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
        ? `This machine has room for ${room} replica${room === 1 ? '' : 's'} on ${deployment.instance_type} now; ` +
          `max_replicas is ${policy.max_replicas}.`
        : null
    if (result.replicas !== entry.desired) await this.decide(entry, result.replicas, result.reason)
    await this.reconciler.reconcile(entry)
  }

  /** Places that it has or may take. What becomes free belongs to deployments without any first. */
  private async roomFor(entry: Entry): Promise<number> {
    const { id, instance_type } = entry.deployment
    const room = await this.options.places.room(instance_type, id)
    const count = [...entry.places.values()].filter((place) => place.class === instance_type).length
    const starving = [...this.entries.values()].filter(
      (other) => other !== entry && other.isStarving && other.deployment.instance_type === instance_type,
    )
    return Math.max(count, room - starving.length)
  }

  private async decide(entry: Entry, to: number, reason: string): Promise<void> {
    const { record, now, log } = this.options
    const { in_flight, waiting } = entry.set.counts()
    const from = entry.desired
    const decision = { deployment_id: entry.deployment.id, at: now(), from, to, reason, in_flight, waiting }
    entry.desired = to
    const kept_ms = decisionsKept_ms(entry.policy)
    entry.decisions = [...entry.decisions.filter(({ at }) => at > decision.at - kept_ms), decision]
    log.info({ deployment: entry.deployment.id, from, to, reason }, 'a deployment scales')
    await record(decision).catch((error) => log.warn({ err: error }, 'a scaling decision could not be stored'))
  }

  private async observe(entry: Entry): Promise<void> {
    const { set, policy, counted } = entry
    const { in_flight, waiting, arrived, completed } = set.counts()
    const serving = activeOf(entry).filter((replica) => replica.state() === 'ready')
    entry.utilization = policy.target_utilization === null ? null : await this.utilizationOf(entry, serving)
    const at = this.options.now()
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
  private async utilizationOf({ places, counted }: Entry, serving: OwnReplica[]): Promise<number | null> {
    const onGpus = serving.some((replica) => places.get(replica)?.gpu) ? await this.options.gpus() : []
    const shares = await Promise.all(
      serving.map(async (replica) => {
        const gpu = places.get(replica)?.gpu
        if (gpu) return onGpus.find(({ uuid }) => uuid === gpu.uuid)?.utilization ?? undefined
        const cpu_ms = await replica.cpu_ms()
        const before = counted.cpu.get(replica)
        if (cpu_ms === undefined) return undefined
        const at = performance.now()
        counted.cpu.set(replica, { at, cpu_ms })
        return before && Math.min(1, (cpu_ms - before.cpu_ms) / ((at - before.at) * replica.placement.threads))
      }),
    )
    const measured = shares.filter((share) => share !== undefined)
    return measured.length === 0 ? null : measured.reduce((sum, share) => sum + share, 0) / measured.length
  }

  private tick(): Promise<void> {
    // Not awaited: a deployment whose replicas hang must not stop the others.
    for (const entry of this.entries.values()) void this.step(entry)
    return Promise.resolve()
  }
}

/** The contract's policy in the autoscaler's units. */
const policyOf = (policy: WirePolicy): ScalingPolicy => ({
  min_replicas: policy.min_replicas,
  max_replicas: policy.max_replicas,
  target_requests: policy.target_requests_per_replica,
  target_utilization: policy.target_gpu_utilization == null ? null : policy.target_gpu_utilization / 100,
  up_cooldown_ms: parseDuration(policy.scale_up_cooldown),
  down_cooldown_ms: parseDuration(policy.scale_down_cooldown),
})
