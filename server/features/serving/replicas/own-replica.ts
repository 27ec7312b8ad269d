// A replica of one deployment: a dedicated engine process, verified before it takes traffic. It runs once; when it
// ends, another takes its place.
import type { Logger } from 'pino'
import { ApiError } from '../../../../contract/errors.ts'
import { abortable } from '../../../../lib/abortable.ts'
import { EngineClient } from '../engine/client.ts'
import { createEngineHealth } from '../engine/health.ts'
import { createEngineProcess, type EngineProcess } from '../engine/process.ts'
import type { WeightFiles } from '../engine/weight-files.ts'
import type { VerifyReplica } from '../fidelity/replica-verification.ts'
import {
  type ModelStatus,
  type Replica,
  ReplicaFailure,
  type ReplicaRequest,
  type ReplicaResponse,
  type Target,
} from '../requests/replica.ts'
import { createLocalReplica } from './local.ts'

/** Where a replica runs, and with how much. */
export interface Placement {
  /** For people, such as `cores 0-3` or `GPU 1`. */
  name: string
  cores?: readonly number[]
  threads: number
  /** Memory for its KV caches. */
  cache_bytes: number
  env?: NodeJS.ProcessEnv
}

export type ReplicaState = 'starting' | 'ready' | 'draining' | 'ended'

interface Options {
  id: string
  deployment_id: string
  placement: Placement
  target: Target
  files: WeightFiles
  dataDir: string
  engine_options: readonly string[]
  verify: VerifyReplica
  max_concurrent: () => number
  /** Called when it may take requests, when it ends, and when a request ends. */
  onChange: () => void
  now: () => number
  log: Logger
}

const keyOf = ({ base, adapter }: Target) => (adapter ? `${base.id}\n${adapter.id}` : base.id)

export class OwnReplica implements Replica {
  readonly id: string
  readonly name: string
  readonly placement: Placement
  readonly engine: EngineClient
  readonly started_at: number
  inFlight = 0
  private readonly options: Options
  private readonly log: Logger
  private readonly process: EngineProcess
  private readonly inner: Replica
  private readonly stopWatching: () => void
  private readonly starting = Promise.withResolvers<void>()
  private readonly ending = Promise.withResolvers<void>()
  /** Resolves when it has verified its first target and takes requests; rejects if it cannot. */
  readonly ready = this.starting.promise
  /** Resolves when its process has ended and nothing uses it any more. */
  readonly ended = this.ending.promise
  private current: ReplicaState = 'starting'
  /** Whether it was asked to end, and did not by itself. */
  wasAsked = false
  private readyAt: number | undefined
  /** The header that answers must have, by target; rejected if the target was not verified. */
  private readonly verified = new Map<string, Promise<string>>()
  private readonly refused = new Set<string>()
  /** Resolves when the last request of a replica that drains has ended. */
  private readonly idle = Promise.withResolvers<void>()

  constructor(options: Options) {
    const { id, deployment_id, placement, files, dataDir, engine_options, now } = options
    this.options = options
    this.id = id
    this.name = `replica on ${placement.name}`
    this.placement = placement
    this.log = options.log.child({ replica: id })
    this.process = createEngineProcess({
      dataDir,
      threads: placement.threads,
      // Weights that were verified stay until the replica ends; the next one has a faster form that was made meanwhile.
      options: [
        ...engine_options,
        '--fixed-weights',
        '--cache-mb',
        String(Math.max(1, Math.floor(placement.cache_bytes / 1e6))),
      ],
      // A deployment has at most one replica at a place.
      name: `${deployment_id} ${placement.name}`,
      env: placement.env ?? {},
      cores: placement.cores,
      restarts: false,
      log: this.log,
    })
    this.engine = new EngineClient(this.process, this.log, files)
    this.inner = createLocalReplica(this.engine, () => true)
    this.stopWatching = createEngineHealth(this.process, this.engine, this.log).watch()
    this.started_at = now()
    this.ready.catch(() => {})
    void this.start().then(this.starting.resolve, this.starting.reject)
  }

  get max_concurrent(): number {
    return this.options.max_concurrent()
  }

  /** Call it when one of its requests has ended. */
  requestEnded(): void {
    if (this.current === 'draining' && this.inFlight === 0) this.idle.resolve()
  }

  state(): ReplicaState {
    return this.current
  }

  ready_at(): number | undefined {
    return this.readyAt
  }

  pid(): number | undefined {
    return this.process.current()?.pid
  }

  isUp(): boolean {
    return this.current === 'ready'
  }

  canServe(target: Target): boolean {
    return this.current === 'ready' && target.base.gguf !== undefined && !this.refused.has(keyOf(target))
  }

  /** Whether it would serve other weights as this target. */
  refuses(target: Target): boolean {
    return this.refused.has(keyOf(target))
  }

  status(target: Target): ModelStatus {
    return this.inner.status(target)
  }

  async load(target: Target): Promise<void> {
    await this.verifyOnce(target)
  }

  /** Loads and verifies a target ahead of its first request. */
  async prepare(target: Target): Promise<void> {
    await this.verifyOnce(target)
  }

  async unload(target: Target): Promise<void> {
    this.verified.delete(keyOf(target))
    this.refused.delete(keyOf(target))
    await this.inner.unload(target)
  }

  onCapacity(): void {}

  async send(request: ReplicaRequest, signal: AbortSignal): Promise<ReplicaResponse> {
    const began_at = performance.now()
    const header = await abortable(this.verifyOnce(request.target), signal).catch((error) => {
      if (signal.aborted) throw error
      throw new ReplicaFailure('engine_failed', (error as Error).message)
    })
    const verify_ms = performance.now() - began_at
    const response = await this.inner.send(request, signal).catch((error) => {
      // It ended before the request was sent: the engine's client asked for another, which never comes.
      const isGone = error instanceof ApiError && error.code === 'engine_unavailable'
      throw isGone && !(error instanceof ReplicaFailure) ? new ReplicaFailure(error.code, error.message) : error
    })
    if (response.weights !== header) this.distrust(response, header)
    return { ...response, load_ms: response.load_ms + verify_ms }
  }

  /** Takes no more requests; ends the process when those in progress have ended. */
  async drain(): Promise<void> {
    this.wasAsked = true
    if (this.current === 'ended') return
    this.current = 'draining'
    if (this.inFlight > 0) await Promise.race([this.ended, this.idle.promise])
    await this.stop()
  }

  /** Ends the process now. */
  async stop(): Promise<void> {
    if (this.current !== 'ended' && this.current !== 'draining') this.current = 'draining'
    await this.process.stop()
    this.end()
  }

  /** Milliseconds of processor time so far; undefined if it does not answer. */
  async cpu_ms(): Promise<number | undefined> {
    const metrics = await this.engine.read('/metrics')
    const seconds = /^tunery_engine_process_cpu_seconds_total (.+)$/m.exec(metrics ?? '')?.[1]
    return seconds === undefined ? undefined : 1000 * Number(seconds)
  }

  private end(): void {
    const { onChange } = this.options
    if (this.current === 'ended') return
    this.current = 'ended'
    this.stopWatching()
    this.ending.resolve()
    onChange()
  }

  private verifyOnce(target: Target): Promise<string> {
    const { files, verify, onChange } = this.options
    const key = keyOf(target)
    const existing = this.verified.get(key)
    if (existing !== undefined) return existing
    const verifyHere = async () => {
      const instance = await this.process.instance()
      // The files that it hashes, and the probe beside them.
      const hold = await files.artifacts.hold(
        [target.base.gguf, target.adapter?.gguf].filter((file) => file !== undefined),
      )
      return await verify(this.engine, target, instance.ended).finally(hold.release)
    }
    const done = verifyHere()
    this.verified.set(key, done)
    done.catch((error) => {
      this.verified.delete(key)
      if (this.current === 'ended' || this.current === 'draining') return
      this.log.error({ err: error, target: key }, 'a replica was not verified: it takes no requests for this model')
      this.refused.add(key)
      onChange()
    })
    return done
  }

  private async start(): Promise<void> {
    const { placement, target: first, onChange, now } = this.options
    try {
      const instance = await this.process.instance()
      instance.ended.addEventListener('abort', () => this.end(), { once: true })
      if (instance.ended.aborted) this.end()
      await abortable(this.verifyOnce(first), instance.ended)
      if (this.current !== 'starting') throw new Error('it ended while it started')
      this.current = 'ready'
      this.readyAt = now()
      this.log.info(
        { place: placement.name, start_ms: this.readyAt - this.started_at, pid: instance.pid },
        'a replica is ready',
      )
      onChange()
    } catch (error) {
      await this.stop()
      throw error
    }
  }

  /** Other weights answered than were verified. Nothing that it says is trusted any more. */
  private distrust(response: ReplicaResponse, header: string): never {
    this.log.error(
      { header: response.weights, expected: header },
      'a replica answered with other weights: it is stopped',
    )
    if ('stream' in response.content) response.content.stream.destroy()
    void this.stop()
    throw new ReplicaFailure(
      'engine_failed',
      'A replica had other weights than those of the model. It was stopped before its answer was sent: try once more.',
    )
  }
}
