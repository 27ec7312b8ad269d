// Load balancer over the replicas of one base model: least requests first, a bounded queue that is fair over accounts,
// retries on failure.
import { ApiError } from '../../../../contract/errors.ts'
import type { Span } from '../../../platform/telemetry/tracing.ts'
import {
  type Replica,
  ReplicaFailure,
  type ReplicaRequest,
  type ReplicaResponse,
  type Target,
} from '../requests/replica.ts'
import { createWaitingList } from './waiting-list.ts'

/** A request that was lost with two replicas is not retried: it may be what crashed them. */
const lost_max = 2

/** When the last request on a replica ended, in any pool (`performance.now()`). */
const lastEnded = new WeakMap<Replica, number>()
/** Recent completions that the queue's rate is computed from. */
const rateSamples = 64

export interface PoolResponse extends ReplicaResponse {
  /** How long the request waited in the queue. */
  queue_ms: number
  /** How long it waited for the first replica to start, if there was none. */
  start_ms?: number
  /** Frees the replica's slot; call it when the response has ended or failed. */
  release(): void
}

export interface Pool {
  replicas: readonly Replica[]
  /** Length of the queue. */
  waiting(): number
  /** Dispatches queued requests; call it when a replica that pools share has free capacity. */
  dispatchWaiting(): void
  run(request: ReplicaRequest, signal: AbortSignal): Promise<PoolResponse>
  /** Ends the queue: each of its requests fails with this error. */
  refuseWaiting(error: Error): void
}

interface Waiter<R> {
  account_id: string
  background: boolean
  target: Target
  tried: ReadonlySet<R>
  assign(replica: R): void
  refuse(error: Error): void
}

/**
 * `waiting_max`: length of the queue; further requests are refused. `onReleased` is called when a request of a replica
 * ends.
 * `isGrowing`: whether another replica is about to come, which a failed request waits for.
 */
export function createPool<R extends Replica>(
  replicas: readonly R[],
  waiting_max: number,
  onReleased: (replica: R) => void,
  isGrowing = () => false,
): Pool {
  const waiting = createWaitingList<Waiter<R>>(waiting_max)
  const completions: number[] = []
  /** Offset for round robin among equally loaded replicas. */
  let rotation = 0

  const capable = (target: Target, tried: ReadonlySet<R>) =>
    replicas.filter((replica) => replica.canServe(target) && !tried.has(replica))

  /** Untried replicas that can serve the target: the healthy ones, or those that do not hang if none is healthy. */
  function candidates(target: Target, tried: ReadonlySet<R>): R[] {
    const admitting = capable(target, tried).filter((replica) => replica.admits?.() ?? true)
    const healthy = admitting.filter((replica) => replica.isUp())
    return healthy.length > 0 ? healthy : admitting
  }

  /** The error for a request whose replicas all hang. */
  function hanging(target: Target, tried: ReadonlySet<R>): ApiError | undefined {
    const all = capable(target, tried)
    if (all.length === 0 || all.some((replica) => replica.admits?.() ?? true)) return undefined
    const retry_after_seconds = Math.min(...all.map((replica) => replica.retryAfter_seconds?.() ?? 1))
    return new ApiError(
      'engine_unavailable',
      `The server of this model took requests and did not answer them. Try again in ${retry_after_seconds} s.`,
      { details: { retry_after_seconds } },
    )
  }

  /** Picks the replica with the fewest requests that has free capacity; round robin among equals. */
  function pickReplica(target: Target, tried: ReadonlySet<R>): R | undefined {
    let best: R | undefined
    const choices = candidates(target, tried)
    for (let index = 0; index < choices.length; index++) {
      const replica = choices[(rotation + index) % choices.length]!
      if (replica.inFlight < replica.max_concurrent && (!best || replica.inFlight < best.inFlight)) best = replica
    }
    rotation++
    return best
  }

  function dispatchWaiting(): void {
    if (waiting.length === 0) return
    for (const waiter of waiting.inOrder()) {
      const replica = pickReplica(waiter.target, waiter.tried)
      const error = replica ? undefined : hanging(waiter.target, waiter.tried)
      if (!replica && !error) continue
      waiting.remove(waiter)
      if (replica) waiter.assign(replica)
      else waiter.refuse(error!)
    }
  }
  for (const replica of replicas) replica.onCapacity(dispatchWaiting)

  function assign(replica: R, account_id: string): void {
    replica.inFlight++
    waiting.begin(account_id)
  }

  function release(replica: R, account_id: string): void {
    replica.inFlight--
    waiting.end(account_id)
    lastEnded.set(replica, performance.now())
    completions.push(performance.now())
    if (completions.length > rateSamples) completions.shift()
    onReleased(replica)
  }

  /** Estimates from the recent completion rate when the queue will be empty. */
  function retryAfter_seconds(): number {
    const [first] = completions
    if (first === undefined || completions.length < 2) return 1
    const each_ms = (performance.now() - first) / completions.length
    return Math.min(60, Math.max(1, Math.ceil((each_ms * waiting.length) / 1000)))
  }

  function full(): ApiError {
    const retry_after_seconds = retryAfter_seconds()
    return new ApiError(
      'overloaded',
      `The queue of requests for this model is full. Try again in ${retry_after_seconds} s.`,
      { details: { retry_after_seconds } },
    )
  }

  /** Waits for a replica with free capacity and counts the request on it. */
  function acquireReplica(
    { account_id, background, target }: ReplicaRequest,
    tried: ReadonlySet<R>,
    signal: AbortSignal,
    span: Span | undefined,
  ): Promise<R> | R {
    // Nobody overtakes the queue. A waiter whose replica is busy does not block the others, see dispatchWaiting.
    const replica = waiting.length === 0 ? pickReplica(target, tried) : undefined
    if (replica) {
      assign(replica, account_id)
      return replica
    }
    const error = hanging(target, tried)
    if (error) {
      span?.end({ error })
      throw error
    }
    return new Promise((resolve, reject) => {
      const waiter: Waiter<R> = {
        account_id,
        background,
        target,
        tried,
        assign(replica) {
          signal.removeEventListener('abort', leaveQueue)
          assign(replica, account_id)
          resolve(replica)
        },
        refuse(error) {
          signal.removeEventListener('abort', leaveQueue)
          span?.end({ error })
          reject(error)
        },
      }
      const leaveQueue = () => {
        waiting.remove(waiter)
        span?.end({ error: signal.reason })
        reject(signal.reason)
      }
      signal.addEventListener('abort', leaveQueue, { once: true })
      waiting.add(waiter)?.refuse(full())
      if (waiting.length > 1) dispatchWaiting()
    })
  }

  return {
    replicas,
    waiting: () => waiting.length,
    dispatchWaiting,
    refuseWaiting(error) {
      for (const waiter of waiting.clear()) waiter.refuse(error)
    },
    async run(request, signal) {
      const tried = new Set<R>()
      let queue_ms = 0
      let lost = 0
      for (;;) {
        signal.throwIfAborted()
        const queued_at = performance.now()
        const wait = request.span?.child('wait for replica', { at: queued_at })
        const replica = await acquireReplica(request, tried, signal, wait)
        queue_ms += performance.now() - queued_at
        wait?.end()
        const call = request.span?.child('call replica', {
          kind: 'client',
          attributes: { 'tunery.replica': replica.name, 'tunery.attempt': tried.size + 1 },
        })
        const sent_at = performance.now()
        let released = false
        const releaseOnce = () => {
          if (released) return
          released = true
          call?.end()
          release(replica, request.account_id)
        }
        try {
          const response = await replica.send(call ? { ...request, span: call } : request, signal)
          if (request.stream) call?.event('first_token')
          return { ...response, queue_ms, release: releaseOnce }
        } catch (error) {
          call?.end({ error })
          if (error instanceof ReplicaFailure)
            error.accompanied = replica.inFlight > 1 || (lastEnded.get(replica) ?? 0) > sent_at
          releaseOnce()
          if (!(error instanceof ReplicaFailure) || signal.aborted) throw error
          tried.add(replica)
          if (error.lost) lost++
          if (
            lost >= (request.isolated ? 1 : lost_max) ||
            (candidates(request.target, tried).length === 0 && !isGrowing())
          )
            throw error
        }
      }
    },
  }
}
