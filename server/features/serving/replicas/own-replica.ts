// A replica of one deployment: a dedicated engine process, verified before it takes traffic. It runs once; when it
// ends, another takes its place.
import type { Logger } from 'pino'
import { ApiError } from '../../../../contract/errors.ts'
import { abortable } from '../../../../lib/abortable.ts'
import { EngineClient, type WeightFiles } from '../engine/client.ts'
import { createEngineHealth } from '../engine/health.ts'
import { createEngineProcess } from '../engine/process.ts'
import type { VerifyReplica } from '../fidelity/replica-verification.ts'
import { type Replica, ReplicaFailure, type ReplicaResponse, type Target } from '../requests/replica.ts'
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

export interface OwnReplica extends Replica {
  readonly id: string
  readonly placement: Placement
  readonly engine: EngineClient
  readonly started_at: number
  state(): ReplicaState
  ready_at(): number | undefined
  pid(): number | undefined
  /** Resolves when it has verified its first target and takes requests; rejects if it cannot. */
  readonly ready: Promise<void>
  /** Resolves when its process has ended and nothing uses it any more. */
  readonly ended: Promise<void>
  /** Whether it would serve other weights as this target. */
  refuses(target: Target): boolean
  /** Loads and verifies a target ahead of its first request. */
  prepare(target: Target): Promise<void>
  /** Call it when one of its requests has ended. */
  requestEnded(): void
  /** Takes no more requests; ends the process when those in progress have ended. */
  drain(): Promise<void>
  /** Ends the process now. */
  stop(): Promise<void>
  /** Milliseconds of processor time so far; undefined if it does not answer. */
  cpu_ms(): Promise<number | undefined>
}

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

export function startOwnReplica(options: Options): OwnReplica {
  const {
    id,
    deployment_id,
    placement,
    target: first,
    files,
    dataDir,
    engine_options,
    verify,
    max_concurrent,
    onChange,
    now,
  } = options
  const log = options.log.child({ replica: id })
  const engine = createEngineProcess({
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
    log,
  })
  const client = new EngineClient(engine, log, files)
  const inner = createLocalReplica(client, () => true)
  const stopWatching = createEngineHealth(engine, client, log).watch()
  const started_at = now()
  const ended = Promise.withResolvers<void>()
  let state: ReplicaState = 'starting'
  let ready_at: number | undefined
  /** The header that answers must have, by target; rejected if the target was not verified. */
  const verified = new Map<string, Promise<string>>()
  const refused = new Set<string>()
  const ready = Promise.withResolvers<void>()
  /** Resolves when the last request of a replica that drains has ended. */
  const idle = Promise.withResolvers<void>()

  const end = () => {
    if (state === 'ended') return
    state = 'ended'
    stopWatching()
    ended.resolve()
    onChange()
  }

  function verifyOnce(target: Target): Promise<string> {
    const key = keyOf(target)
    const existing = verified.get(key)
    if (existing !== undefined) return existing
    const verifyHere = async () => {
      const instance = await engine.instance()
      // The files that it hashes, and the probe beside them.
      const hold = await files.artifacts.hold(
        [target.base.gguf, target.adapter?.gguf].filter((file) => file !== undefined),
      )
      return await verify(client, target, instance.ended).finally(hold.release)
    }
    const done = verifyHere()
    verified.set(key, done)
    done.catch((error) => {
      verified.delete(key)
      if (state === 'ended') return
      log.error({ err: error, target: key }, 'a replica was not verified: it takes no requests for this model')
      refused.add(key)
      onChange()
    })
    return done
  }

  async function start(): Promise<void> {
    try {
      const instance = await engine.instance()
      instance.ended.addEventListener('abort', end, { once: true })
      if (instance.ended.aborted) end()
      await abortable(verifyOnce(first), instance.ended)
      if (state !== 'starting') throw new Error('it ended while it started')
      state = 'ready'
      ready_at = now()
      log.info({ place: placement.name, start_ms: ready_at - started_at, pid: instance.pid }, 'a replica is ready')
      onChange()
    } catch (error) {
      await replica.stop()
      throw error
    }
  }

  /** Other weights answered than were verified. Nothing that it says is trusted any more. */
  function distrust(response: ReplicaResponse, header: string): never {
    log.error({ header: response.weights, expected: header }, 'a replica answered with other weights: it is stopped')
    if ('stream' in response.content) response.content.stream.destroy()
    void replica.stop()
    throw new ReplicaFailure(
      'engine_failed',
      'A replica had other weights than those of the model. It was stopped before its answer was sent: try once more.',
    )
  }

  const replica: OwnReplica = {
    id,
    name: `replica on ${placement.name}`,
    placement,
    engine: client,
    started_at,
    ready: ready.promise,
    ended: ended.promise,
    get max_concurrent() {
      return max_concurrent()
    },
    inFlight: 0,
    requestEnded() {
      if (state === 'draining' && replica.inFlight === 0) idle.resolve()
    },
    state: () => state,
    ready_at: () => ready_at,
    pid: () => engine.current()?.pid,
    isUp: () => state === 'ready',
    canServe: (target) => state === 'ready' && target.base.gguf !== undefined && !refused.has(keyOf(target)),
    refuses: (target) => refused.has(keyOf(target)),
    status: inner.status,
    load: async (target) => void (await verifyOnce(target)),
    prepare: async (target) => void (await verifyOnce(target)),
    async unload(target) {
      verified.delete(keyOf(target))
      refused.delete(keyOf(target))
      await inner.unload(target)
    },
    onCapacity: () => {},

    async send(request, signal) {
      const began_at = performance.now()
      const header = await abortable(verifyOnce(request.target), signal).catch((error) => {
        if (signal.aborted) throw error
        throw new ReplicaFailure('engine_failed', (error as Error).message)
      })
      const verify_ms = performance.now() - began_at
      const response = await inner.send(request, signal).catch((error) => {
        // It ended before the request was sent: the engine's client asked for another, which never comes.
        const isGone = error instanceof ApiError && error.code === 'engine_unavailable'
        throw isGone && !(error instanceof ReplicaFailure) ? new ReplicaFailure(error.code, error.message) : error
      })
      if (response.weights !== header) distrust(response, header)
      return { ...response, load_ms: response.load_ms + verify_ms }
    },

    async drain() {
      if (state === 'ended') return
      state = 'draining'
      if (replica.inFlight > 0) await Promise.race([ended.promise, idle.promise])
      await replica.stop()
    },

    async stop() {
      if (state !== 'ended' && state !== 'draining') state = 'draining'
      await engine.stop()
      end()
    },

    async cpu_ms() {
      const metrics = await client.read('/metrics')
      const found = /^tunery_engine_process_cpu_seconds_total (.+)$/m.exec(metrics ?? '')?.[1]
      return found === undefined ? undefined : 1000 * Number(found)
    },
  }
  ready.promise.catch(() => {})
  void start().then(ready.resolve, ready.reject)
  return replica
}
