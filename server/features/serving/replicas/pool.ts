// Load balancer over the replicas of one base model: the replica that an adapter belongs to, else the one with the
// fewest requests; a bounded queue that is fair over accounts; retries on failure.
import { ApiError } from '../../../../contract/errors.ts'
import type { Span } from '../../../platform/telemetry/tracing.ts'
import {
  type Replica,
  ReplicaFailure,
  type ReplicaRequest,
  type ReplicaResponse,
  type Target,
} from '../requests/replica.ts'
import { chooseReplica } from './choice.ts'
import { createWaitingList, type WaitingList } from './waiting-list.ts'

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

interface Waiter<R> {
  account_id: string
  background: boolean
  target: Target
  tried: ReadonlySet<R>
  assign(replica: R): void
  refuse(error: Error): void
}

export class Pool<R extends Replica> {
  readonly replicas: readonly R[]
  private readonly onReleased: (replica: R) => void
  private readonly isGrowing: () => boolean
  private readonly queue: WaitingList<Waiter<R>>
  private readonly completions: number[] = []
  /** Offset for round robin among equally loaded replicas. */
  private rotation = 0

  /**
   * `waiting_max`: length of the queue; further requests are refused. `onReleased` is called when a request of a
   * replica ends. `isGrowing`: whether another replica is about to come, which a failed request waits for.
   */
  constructor(replicas: readonly R[], waiting_max: number, onReleased: (replica: R) => void, isGrowing = () => false) {
    this.replicas = replicas
    this.onReleased = onReleased
    this.isGrowing = isGrowing
    this.queue = createWaitingList<Waiter<R>>(waiting_max)
    for (const replica of replicas) replica.onCapacity(() => this.dispatchWaiting())
  }

  /** Length of the queue. */
  waiting(): number {
    return this.queue.length
  }

  /** Dispatches queued requests; call it when a replica that pools share has free capacity. */
  dispatchWaiting(): void {
    if (this.queue.length === 0) return
    for (const waiter of this.queue.inOrder()) {
      const replica = this.pickReplica(waiter.target, waiter.tried)
      const error = replica ? undefined : this.hanging(waiter.target, waiter.tried)
      if (!replica && !error) continue
      this.queue.remove(waiter)
      if (replica) waiter.assign(replica)
      else waiter.refuse(error!)
    }
  }

  /** Ends the queue: each of its requests fails with this error. */
  refuseWaiting(error: Error): void {
    for (const waiter of this.queue.clear()) waiter.refuse(error)
  }

  async run(request: ReplicaRequest, signal: AbortSignal): Promise<PoolResponse> {
    const tried = new Set<R>()
    let queue_ms = 0
    let lost = 0
    for (;;) {
      signal.throwIfAborted()
      const queued_at = performance.now()
      const wait = request.span?.child('wait for replica', { at: queued_at })
      const replica = await this.acquireReplica(request, tried, signal, wait)
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
        this.release(replica, request.account_id)
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
          (this.candidates(request.target, tried).length === 0 && !this.isGrowing())
        )
          throw error
      }
    }
  }

  private capable(target: Target, tried: ReadonlySet<R>): R[] {
    return this.replicas.filter((replica) => replica.canServe(target) && !tried.has(replica))
  }

  /** Untried replicas that can serve the target: the healthy ones, or those that do not hang if none is healthy. */
  private candidates(target: Target, tried: ReadonlySet<R>): R[] {
    const admitting = this.capable(target, tried).filter((replica) => replica.admits?.() ?? true)
    const healthy = admitting.filter((replica) => replica.isUp())
    return healthy.length > 0 ? healthy : admitting
  }

  /** The error for a request whose replicas all hang. */
  private hanging(target: Target, tried: ReadonlySet<R>): ApiError | undefined {
    const all = this.capable(target, tried)
    if (all.length === 0 || all.some((replica) => replica.admits?.() ?? true)) return undefined
    const retry_after_seconds = Math.min(...all.map((replica) => replica.retryAfter_seconds?.() ?? 1))
    return new ApiError(
      'engine_unavailable',
      `The server of this model took requests and did not answer them. Try again in ${retry_after_seconds} s.`,
      { details: { retry_after_seconds } },
    )
  }

  private pickReplica(target: Target, tried: ReadonlySet<R>): R | undefined {
    return chooseReplica(this.candidates(target, tried), target.adapter?.id, this.rotation++)
  }

  private assign(replica: R, account_id: string): void {
    replica.inFlight++
    this.queue.begin(account_id)
  }

  private release(replica: R, account_id: string): void {
    replica.inFlight--
    this.queue.end(account_id)
    lastEnded.set(replica, performance.now())
    this.completions.push(performance.now())
    if (this.completions.length > rateSamples) this.completions.shift()
    this.onReleased(replica)
  }

  /** Estimates from the recent completion rate when the queue will be empty. */
  private retryAfter_seconds(): number {
    const [first] = this.completions
    if (first === undefined || this.completions.length < 2) return 1
    const each_ms = (performance.now() - first) / this.completions.length
    return Math.min(60, Math.max(1, Math.ceil((each_ms * this.queue.length) / 1000)))
  }

  private full(): ApiError {
    const retry_after_seconds = this.retryAfter_seconds()
    return new ApiError(
      'overloaded',
      `The queue of requests for this model is full. Try again in ${retry_after_seconds} s.`,
      { details: { retry_after_seconds } },
    )
  }

  /** Waits for a replica with free capacity and counts the request on it. */
  private acquireReplica(
    { account_id, background, target }: ReplicaRequest,
    tried: ReadonlySet<R>,
    signal: AbortSignal,
    span: Span | undefined,
  ): Promise<R> | R {
    // Nobody overtakes the queue. A waiter whose replica is busy does not block the others, see dispatchWaiting.
    const replica = this.queue.length === 0 ? this.pickReplica(target, tried) : undefined
    if (replica) {
      this.assign(replica, account_id)
      return replica
    }
    const error = this.hanging(target, tried)
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
        assign: (replica) => {
          signal.removeEventListener('abort', leaveQueue)
          this.assign(replica, account_id)
          resolve(replica)
        },
        refuse: (error) => {
          signal.removeEventListener('abort', leaveQueue)
          span?.end({ error })
          reject(error)
        },
      }
      const leaveQueue = () => {
        this.queue.remove(waiter)
        span?.end({ error: signal.reason })
        reject(signal.reason)
      }
      signal.addEventListener('abort', leaveQueue, { once: true })
      this.queue.add(waiter)?.refuse(this.full())
      if (this.queue.length > 1) this.dispatchWaiting()
    })
  }
}
