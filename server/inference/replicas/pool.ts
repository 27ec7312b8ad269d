// The replicas of one base model: which takes a request, who waits, what is tried again.
import { ApiError } from '../../../contract/errors.ts'
import { type Answer, type Ask, type Replica, ReplicaFailure, type Target } from './replica.ts'

/** A request that was lost with the server that had it is tried on one more: it may be what killed the first. */
const lostMax = 2
/** Answers by which the pace of the queue is told. */
const paceOf = 64

export interface Served extends Answer {
  /** How long the request waited for its turn. */
  queue_ms: number
  /** To be called when the answer has ended, however that was. */
  release(): void
}

export interface Pool {
  replicas: readonly Replica[]
  /** Lets in whoever can be; for when a replica that other models use too has room. */
  letIn(): void
  run(ask: Ask, signal: AbortSignal): Promise<Served>
}

interface Waiter {
  target: Target
  tried: ReadonlySet<Replica>
  take(replica: Replica): void
}

/** `waiting_max`: requests that may wait for their turn; more are refused. `freed` is told that a replica has room. */
export function createPool(replicas: readonly Replica[], waiting_max: number, freed: () => void): Pool {
  const waiting: Waiter[] = []
  const ended: number[] = []
  let turn = 0

  /** Those that may be asked: of what can serve it and was not tried, what is well; all of it where nothing is. */
  function candidates(target: Target, tried: ReadonlySet<Replica>): Replica[] {
    const able = replicas.filter((replica) => replica.takes(target) && !tried.has(replica))
    const well = able.filter((replica) => replica.up())
    return well.length > 0 ? well : able
  }

  /** The one with the fewest requests that has room; those with equally many in turn. */
  function choose(target: Target, tried: ReadonlySet<Replica>): Replica | undefined {
    let best: Replica | undefined
    const among = candidates(target, tried)
    for (let index = 0; index < among.length; index++) {
      const replica = among[(turn + index) % among.length]!
      if (replica.outstanding < replica.max_concurrent && (!best || replica.outstanding < best.outstanding))
        best = replica
    }
    turn++
    return best
  }

  function letIn(): void {
    for (let index = 0; index < waiting.length; ) {
      const waiter = waiting[index]!
      const replica = choose(waiter.target, waiter.tried)
      if (replica) {
        waiting.splice(index, 1)
        waiter.take(replica)
      } else index++
    }
  }
  for (const replica of replicas) replica.onFree(letIn)

  function release(replica: Replica): void {
    replica.outstanding--
    ended.push(performance.now())
    if (ended.length > paceOf) ended.shift()
    freed()
  }

  /** When the present queue will have been served, by the pace of the last answers. */
  function retryAfter_seconds(): number {
    const [first] = ended
    if (first === undefined || ended.length < 2) return 1
    const each_ms = (performance.now() - first) / ended.length
    return Math.min(60, Math.max(1, Math.ceil((each_ms * waiting.length) / 1000)))
  }

  /** Waits for a replica with room and counts the request on it. */
  function admit(target: Target, tried: ReadonlySet<Replica>, signal: AbortSignal): Promise<Replica> | Replica {
    // Nobody overtakes those who wait; a waiter that only another replica can take does not hold others up, as letIn
    // sees to.
    const replica = waiting.length === 0 ? choose(target, tried) : undefined
    if (replica) {
      replica.outstanding++
      return replica
    }
    if (waiting.length >= waiting_max) {
      const retry_after_seconds = retryAfter_seconds()
      throw new ApiError(
        'overloaded',
        `The queue of requests for this model is full. Try again in ${retry_after_seconds} s.`,
        {
          details: { retry_after_seconds },
        },
      )
    }
    return new Promise((resolve, reject) => {
      const waiter: Waiter = {
        target,
        tried,
        take(given) {
          signal.removeEventListener('abort', leave)
          given.outstanding++
          resolve(given)
        },
      }
      const leave = () => {
        waiting.splice(waiting.indexOf(waiter), 1)
        reject(signal.reason)
      }
      signal.addEventListener('abort', leave, { once: true })
      waiting.push(waiter)
      if (waiting.length > 1) letIn()
    })
  }

  return {
    replicas,
    letIn,
    async run(ask, signal) {
      const tried = new Set<Replica>()
      let queue_ms = 0
      let lost = 0
      for (;;) {
        signal.throwIfAborted()
        const asked = performance.now()
        const replica = await admit(ask.target, tried, signal)
        queue_ms += performance.now() - asked
        let released = false
        const done = () => {
          if (released) return
          released = true
          release(replica)
        }
        try {
          const answer = await replica.send(ask, signal)
          return { ...answer, queue_ms, release: done }
        } catch (error) {
          done()
          if (!(error instanceof ReplicaFailure) || signal.aborted) throw error
          tried.add(replica)
          if (error.lost) lost++
          if (lost >= lostMax || candidates(ask.target, tried).length === 0) throw error
        }
      }
    },
  }
}
