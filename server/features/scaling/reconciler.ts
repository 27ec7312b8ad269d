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

export interface Reconciler {
  /** Starts what is missing and drains what is too many. */
  reconcile(entry: Entry): Promise<void>
  /** Lets a replica end its requests, and then the replica. */
  drain(entry: Entry, replica: OwnReplica): void
  /** A replica has ended, asked or by itself. */
  onEnded(entry: Entry, replica: OwnReplica): void
}

export function createReconciler(options: ReconcilerOptions, control: Control): Reconciler {
  const { files, dataDir, engine_options, inference, deployments, places, yieldsToo, now, log } = options
  const { entries, step, decide, isStopping } = control

  async function reconcile(entry: Entry): Promise<void> {
    while (fittingOf(entry).length < entry.desired && now() >= entry.retry_at && !entry.removed) {
      const { deployment } = entry
      const plan = await wantedOf(entry).catch((error) => onStartFailed(entry, error))
      if (!plan) return
      const { target, bytes } = plan
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
    const serving = fitting.filter((replica) => replica.state() === 'ready').length
    const old = serving >= entry.desired ? activeOf(entry).filter((replica) => !fitting.includes(replica)) : []
    const surplus = fitting
      .toSorted((a, b) => Number(a.state() === 'ready') - Number(b.state() === 'ready') || a.inFlight - b.inFlight)
      .slice(0, Math.max(0, fitting.length - entry.desired))
    for (const replica of [...old, ...surplus]) drain(entry, replica)
  }

  function drain(entry: Entry, replica: OwnReplica): void {
    entry.leaving.add(replica)
    void replica
      .drain()
      .catch((error) => log.error({ err: error, replica: replica.id }, 'a replica could not be ended'))
  }

  /** The weights that the deployment serves now, on this machine, and their size. */
  async function wantedOf({ deployment }: Entry): Promise<{ target: Target; bytes: number }> {
    const current = await deployments.findUnscoped(deployment.id)
    if (!current) throw new ApiError('deployment_not_found', `There is no deployment '${deployment.name}'.`)
    const target = await inference.target(current.account_id, current.model)
    return { target, bytes: await bytesOf(target, files.artifacts, files.keepsOriginal) }
  }

  function start(entry: Entry, target: Target, place: Place): void {
    const { deployment } = entry
    const replica = new OwnReplica({
      id: newId('rep'),
      deployment_id: deployment.id,
      placement: place.placement,
      target,
      files,
      dataDir,
      engine_options,
      verify: options.verify,
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
    if (wasAsked || entry.removed || isStopping()) return
    if (replica.ready_at() !== undefined) {
      log.warn({ deployment: entry.deployment.id, replica: replica.id }, 'a replica ended by itself')
      entry.deaths = [...entry.deaths.filter((at) => at > now() - deaths_ms), now()]
      if (entry.deaths.length > 2) backOff(entry, entry.deaths.length - 2)
    }
    void step(entry)
  }

  return { reconcile, drain, onEnded }
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
