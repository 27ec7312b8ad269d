// The replicas of one deployment, with their own queue. How many there are, and where, is decided by the autoscaler.
import { ApiError } from '../../../../contract/errors.ts'
import type { ModelStatus, ReplicaRequest, Target } from '../requests/replica.ts'
import type { TokenCounts } from '../requests/usage-scanner.ts'
import type { OwnReplica } from './own-replica.ts'
import { Pool, type PoolResponse } from './pool.ts'

/** Counts since the deployment began to scale, and what there is now. */
interface SetCounts {
  in_flight: number
  waiting: number
  arrived: number
  completed: number
}

/** What serves one deployment alone: replicas on this machine, or in a cluster. */
export interface ServingSet {
  /** All that have not ended, the oldest first. */
  replicas(): readonly Pick<OwnReplica, 'state'>[]
  run(request: ReplicaRequest, signal: AbortSignal): Promise<PoolResponse>
  status(target: Target): ModelStatus
  /** Loads and verifies a target ahead of its first request. Throws if it is not served. */
  prepare(target: Target): Promise<void>
  unload(target: Target): Promise<void>
  /** Tokens of a request whose client left; undefined if no replica knows it. */
  abortedUsage(request_id: string): Promise<TokenCounts | undefined>
}

export interface ReplicaSet extends ServingSet {
  replicas(): readonly OwnReplica[]
  /** Adds a replica that starts. It is removed when it ends. */
  add(replica: OwnReplica): void
  /** Call it when a replica may take requests. */
  dispatchWaiting(): void
  counts(): SetCounts
  /** Requests that wait while no replica can come fail with this error. */
  refuseWaiting(error: Error): void
  /** Ends all replicas at once. */
  close(): Promise<void>
}

interface Options {
  waiting_max: number
  /** Called when a request finds no replica. Throws an ApiError if none can come. */
  onDemand(): void
  /** Whether another replica is about to start. */
  isGrowing(): boolean
  onEnded(replica: OwnReplica): void
}

export function createReplicaSet({ waiting_max, onDemand, isGrowing, onEnded }: Options): ReplicaSet {
  const replicas: OwnReplica[] = []
  const pool = new Pool(
    replicas,
    waiting_max,
    (replica) => {
      replica.requestEnded()
      pool.dispatchWaiting()
    },
    () => replicas.some((replica) => replica.state() === 'starting') || isGrowing(),
  )
  const ready = () => replicas.filter((replica) => replica.state() === 'ready')
  let arrived = 0
  let completed = 0

  return {
    replicas: () => replicas,
    add(replica) {
      replicas.push(replica)
      void replica.ended.then(() => {
        replicas.splice(replicas.indexOf(replica), 1)
        onEnded(replica)
      })
    },
    dispatchWaiting: () => pool.dispatchWaiting(),
    refuseWaiting: (error) => pool.refuseWaiting(error),

    async run(request, signal) {
      arrived++
      const serving = ready()
      const began_at = performance.now()
      // Read when the answer begins: those that started in the meantime have their times by then.
      const firstReady = () => Math.min(...ready().map((replica) => replica.ready_at() ?? Number.POSITIVE_INFINITY))
      const began = Date.now()
      try {
        if (serving.length === 0) onDemand()
        else if (serving.every((replica) => replica.refuses(request.target)))
          throw new ApiError(
            'engine_failed',
            'No replica of this deployment serves the weights of its model. The log of the service has the reason.',
          )
        const response = await pool.run(request, signal)
        const release = () => {
          response.release()
        }
        const counted = { ...response, release: once(() => completed++, release) }
        if (serving.length > 0) return counted
        const waited_ms = Math.max(0, Math.min(response.queue_ms, firstReady() - began, performance.now() - began_at))
        return { ...counted, start_ms: waited_ms, queue_ms: response.queue_ms - waited_ms }
      } catch (error) {
        completed++
        throw error
      }
    },

    counts: () => ({
      in_flight: replicas.reduce((sum, replica) => sum + replica.inFlight, 0),
      waiting: pool.waiting(),
      arrived,
      completed,
    }),

    status(target) {
      const states = ready().map((replica) => replica.status(target))
      return states.includes('loaded') ? 'loaded' : replicas.length > 0 ? 'loading' : 'not_loaded'
    },

    async prepare(target) {
      await Promise.all(ready().map((replica) => replica.prepare(target)))
    },
    async unload(target) {
      await Promise.allSettled(ready().map((replica) => replica.unload(target)))
    },

    async abortedUsage(request_id) {
      const usages = await Promise.all(
        replicas.map((replica) => replica.engine.abortedUsage(request_id).catch(() => undefined)),
      )
      return usages.find((usage) => usage !== undefined)
    },

    async close() {
      pool.refuseWaiting(
        new ApiError('shutting_down', 'The service is stopping. Send the request once more in a moment.'),
      )
      await Promise.all(replicas.map((replica) => replica.stop()))
    },
  }
}

/** Runs both the first time, and then neither. */
function once(first: () => void, second: () => void): () => void {
  let done = false
  return () => {
    if (done) return
    done = true
    first()
    second()
  }
}
