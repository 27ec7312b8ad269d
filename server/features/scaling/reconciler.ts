// Starts and drains replicas until a deployment has as many as the controller decided: takes places for them, backs off
// when they fail, and lets a deployment without any have a place of another.

import { stat } from 'node:fs/promises'
import type { Logger } from 'pino'
import { ApiError } from '../../../contract/errors.ts'
import { eightBitsFile, hasEightBitsFile } from '../../../lib/eight-bits.ts'
import { newId } from '../../../lib/ids.ts'
import type { Artifacts } from '../../platform/storage/objects/index.ts'
import type { Deployments } from '../deployments/index.ts'
import type { Inference } from '../inference/index.ts'
import { OwnReplica, type Target, type VerifyReplica, type WeightFiles } from '../serving/index.ts'
import type { Place, Places } from './places.ts'
import { activeOf, type Entry, fittingOf } from './scaled-deployment.ts'

/** Until a start has been measured. */
export const firstStart_ms = 10_000
/** A failed start is tried again after 1 s, then twice as long each time, up to this. */
const backOff_ms = { first: 1000, most: 60_000 }
/** Replicas that end by themselves within this time are started again with a back-off too. */
const deaths_ms = 60_000

export interface ReconcilerOptions {
  files: WeightFiles & { artifacts: Pick<Artifacts, 'ensureLocal'> }
  dataDir: string
  engine_options: readonly string[]
  inference: Pick<Inference, 'target'>
  deployments: Pick<Deployments, 'findUnscoped'>
  places: Places
  verify: VerifyReplica
  /** Tells what yields its cores to trainings of a replica; returns what ends that. */
  yieldsToo: (engine: OwnReplica['engine']) => () => void
  now: () => number
  log: Logger
}

/** What the controller lends to the reconciler. */
interface Control {
  entries: ReadonlyMap<string, Entry>
  /** Observes and decides again, soon. */
  step(entry: Entry): Promise<void>
  decide(entry: Entry, to: number, reason: string): Promise<void>
  isStopping(): boolean
}

export class Reconciler {
  private readonly options: ReconcilerOptions
  private readonly control: Control

  constructor(options: ReconcilerOptions, control: Control) {
    this.options = options
    this.control = control
  }

  /** Starts what is missing and drains what is too many. */
  async reconcile(entry: Entry): Promise<void> {
    while (fittingOf(entry).length < entry.desired && this.options.now() >= entry.retry_at && !entry.removed) {
      const { deployment } = entry
      const plan = await this.wantedOf(entry).catch((error) => this.onStartFailed(entry, error))
      if (!plan) return
      const { target, bytes } = plan
      const place = await this.options.places.take(deployment.instance_type, deployment.id, bytes)
      if ('refused' in place) {
        entry.limit = place.refused
        if (activeOf(entry).length > 0) return
        entry.isStarving = await this.takeFromAnother(entry)
        if (!entry.isStarving) this.refuseWaiting(entry, place.refused)
        return
      }
      entry.isStarving = false
      if (entry.removed) return place.release()
      this.start(entry, target, place)
    }
    const fitting = fittingOf(entry)
    // Replicas of a former class serve until those of the new one do.
    const serving = fitting.filter((replica) => replica.state() === 'ready').length
    const old = serving >= entry.desired ? activeOf(entry).filter((replica) => !fitting.includes(replica)) : []
    const surplus = fitting
      .toSorted((a, b) => Number(a.state() === 'ready') - Number(b.state() === 'ready') || a.inFlight - b.inFlight)
      .slice(0, Math.max(0, fitting.length - entry.desired))
    for (const replica of [...old, ...surplus]) this.drain(entry, replica)
  }

  /** Lets a replica end its requests, and then the replica. */
  drain(entry: Entry, replica: OwnReplica): void {
    entry.leaving.add(replica)
    void replica
      .drain()
      .catch((error) => this.options.log.error({ err: error, replica: replica.id }, 'a replica could not be ended'))
  }

  /** A replica has ended, asked or by itself. */
  onEnded(entry: Entry, replica: OwnReplica): void {
    const wasAsked = entry.leaving.delete(replica)
    entry.places.delete(replica)
    entry.counted.cpu.delete(replica)
    if (wasAsked || entry.removed || this.control.isStopping()) return
    if (replica.ready_at() !== undefined) {
      this.options.log.warn({ deployment: entry.deployment.id, replica: replica.id }, 'a replica ended by itself')
      entry.deaths = [...entry.deaths.filter((at) => at > this.options.now() - deaths_ms), this.options.now()]
      if (entry.deaths.length > 2) this.backOff(entry, entry.deaths.length - 2)
    }
    void this.control.step(entry)
  }

  /** The weights that the deployment serves now, on this machine, and their size. */
  private async wantedOf({ deployment }: Entry): Promise<{ target: Target; bytes: number }> {
    const current = await this.options.deployments.findUnscoped(deployment.id)
    if (!current) throw new ApiError('deployment_not_found', `There is no deployment '${deployment.name}'.`)
    const target = await this.options.inference.target(current.account_id, current.model)
    return { target, bytes: await bytesOf(target, this.options.files.artifacts, this.options.files.keepsOriginal) }
  }

  private start(entry: Entry, target: Target, place: Place): void {
    const { deployment } = entry
    const replica = new OwnReplica({
      id: newId('rep'),
      deployment_id: deployment.id,
      placement: place.placement,
      target,
      files: this.options.files,
      dataDir: this.options.dataDir,
      engine_options: this.options.engine_options,
      verify: this.options.verify,
      max_concurrent: () => 2 * entry.policy.target_requests,
      onChange: () => entry.set.dispatchWaiting(),
      now: this.options.now,
      log: this.options.log,
    })
    entry.places.set(replica, place)
    entry.set.add(replica)
    const stopYielding = this.options.yieldsToo(replica.engine)
    void replica.ended.then(() => {
      stopYielding()
      place.release()
      for (const other of this.control.entries.values()) if (other.isStarving) void this.control.step(other)
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
        if (!replica.wasAsked && !entry.removed) this.onStartFailed(entry, error)
      },
    )
  }

  private backOff(entry: Entry, failures: number): number {
    const wait_ms = Math.min(backOff_ms.most, backOff_ms.first * 2 ** (failures - 1))
    entry.retry_at = this.options.now() + wait_ms
    return wait_ms
  }

  private onStartFailed(entry: Entry, cause: Error): undefined {
    const wait_ms = this.backOff(entry, ++entry.failures)
    const message =
      `No replica of '${entry.deployment.name}' could be started: ${cause.message.replace(/\.?$/, '.')} ` +
      `The next try is in ${Math.ceil(wait_ms / 1000)} s.`
    entry.error = cause instanceof ApiError ? cause.with({ message }) : new ApiError('engine_unavailable', message)
    this.options.log.error({ err: cause, deployment: entry.deployment.id, wait_ms }, 'a replica could not be started')
    if (activeOf(entry).length === 0) entry.set.refuseWaiting(entry.error)
  }

  private refuseWaiting(entry: Entry, why: string): void {
    const { name } = entry.deployment
    entry.set.refuseWaiting(
      new ApiError('overloaded', `There is no room for a replica of '${name}' now: ${why} Try again later.`, {
        details: { retry_after_seconds: 30 },
      }),
    )
  }

  /** A deployment without any replica gets the place of one that has several. Returns whether one becomes free. */
  private async takeFromAnother(entry: Entry): Promise<boolean> {
    if (entry.set.counts().waiting === 0) return false
    const { instance_type } = entry.deployment
    const others = [...this.control.entries.values()].filter(
      (other) => other !== entry && other.deployment.instance_type === instance_type,
    )
    // One that leaves already will do.
    if (others.some((other) => other.leaving.size > 0)) return true
    const rich = others
      .filter((other) => other.desired > Math.max(1, other.policy.min_replicas) && fittingOf(other).length > 1)
      .toSorted((a, b) => b.desired - a.desired)
      .at(0)
    if (!rich) return false
    await this.control.decide(rich, rich.desired - 1, 'Gave a place to a deployment that had no replica.')
    void this.control.step(rich)
    return true
  }
}

/** Sizes of the files that a replica reads, in bytes; fetches those that are not on this machine. */
export async function bytesOf(
  { base, adapter }: Target,
  artifacts: Pick<Artifacts, 'ensureLocal'>,
  keepsOriginal: (base_id: string) => boolean,
): Promise<number> {
  for (const file of [base.gguf!, ...(adapter ? [adapter.gguf] : [])]) await artifacts.ensureLocal(file)
  const size = async (file: string) => (await stat(file).catch(() => undefined))?.size ?? 0
  const besides = [base.projector?.path, adapter?.gguf, adapter?.projector?.path].filter((file) => file !== undefined)
  const sizes = await Promise.all(besides.map(size))
  const weights = await size(
    !keepsOriginal(base.id) && hasEightBitsFile(base.gguf!) ? eightBitsFile(base.gguf!) : base.gguf!,
  )
  return sizes.reduce((sum, bytes) => sum + bytes, weights)
}
