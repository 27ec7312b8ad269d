// The loop that computes: one lane after another, one step each, and a turn of the event loop after every step, so that
// new requests, hang-ups and the end of the parent are seen between any two steps.
import { setImmediate as nextTurn } from 'node:timers/promises'
import { ApiError } from '../../contract/errors.ts'
import type { ServedModel } from '../models/models.ts'
import {
  abandonGeneration,
  createGeneration,
  failGeneration,
  type Generation,
  type GenerationEvents,
  type GenerationRequest,
} from './generation.ts'
import { promptTime } from './prefill.ts'
import type { StepStats } from './runner.ts'
import { type Backend, createLanePool, hasWork, type PooledLane, waitIn } from './runner-pool.ts'
import type { MemoryLimits } from './slot-sizes.ts'
import type { Rests } from './yielding.ts'

export type Submission = {
  /** Of the model's lanes, the one to begin in. */ size: number
  request: GenerationRequest
  events: GenerationEvents
}
export type Submitted = { cancel(): void; progress(): { completion_tokens: number; cached_tokens: number } }
export type SchedulerCounts = { running: number; waiting: number; lanes: number; lane_bytes: number }
export type Scheduler = {
  /**
   * Queues generations for one model, all or none, and returns the ways to cancel them. Throws ApiError overloaded when
   * the queue is full.
   */
  submit(served: ServedModel, submissions: readonly Submission[]): Submitted[]
  /** Frees the lanes of a model, failing what still runs in them. */
  release(served: ServedModel): Promise<void>
  counts(): SchedulerCounts
}

const waitingMax = 256
const memoryWaitMsMax = 10_000
const idleCheckMs = 5000

type Hooks = {
  onStep(stats: StepStats): void
  onFault(error: unknown, model: string): void
  /** Called when there are requests again; what it returns, when there are none. */
  onBusy(): () => void
}

export function createScheduler(backend: Backend, limits: MemoryLimits, rests: Rests, hooks: Hooks): Scheduler {
  let looping = false
  let idle: (() => void) | null = null

  const fault = (pooled: PooledLane, error: unknown) => {
    hooks.onFault(error, pooled.served.name)
    for (const generation of pooled.waiting.splice(0))
      failGeneration(generation, new ApiError('engine_failed', `No lane could be made for ${pooled.served.name}.`))
    pool.close(pooled)
  }
  const wake = () => {
    if (!looping) setImmediate(() => void (looping || loop()))
  }
  const pool = createLanePool(backend, limits, {
    onChange: wake,
    onFault: fault,
    onAnswerFault: (pooled, error) => hooks.onFault(error, pooled.served.name),
  })

  const loop = async () => {
    looping = true
    for (let busy = withWork(); busy.length > 0; busy = withWork()) {
      for (const pooled of busy) {
        stepOnce(pooled)
        await (rests.due() ?? nextTurn())
      }
    }
    looping = false
    settle()
  }

  const settle = () => {
    if (!idle || pool.all().some((pooled) => hasWork(pooled))) return
    idle()
    idle = null
  }

  const stepOnce = (pooled: PooledLane) => {
    const { lane } = pooled
    // It may have been closed while another was stepped.
    if (!lane) return
    try {
      const began_ms = performance.now()
      const stats = lane.step(promptTime(pool.all().flatMap((other) => other.lane ?? [])))
      if (!stats) return
      rests.computed(performance.now() - began_ms)
      hooks.onStep(stats)
      if (stats.failed) hooks.onFault(new Error('llama_decode failed; the lane was rebuilt'), pooled.served.name)
    } catch (error) {
      fault(pooled, error)
    }
  }

  /** Hands what waits for a lane to it, once there is one. */
  const admit = (pooled: PooledLane) => {
    try {
      for (const generation of pooled.waiting) if (generation.cancelled) abandonGeneration(generation)
      pooled.waiting = pooled.waiting.filter((generation) => generation.state === 'waiting')
      // What was made for requests that have left is taken all the same, or nobody could give it up.
      if (!hasWork(pooled) && !pooled.coming?.context) return
      const lane = pool.ready(pooled)
      if (lane) lane.waiting.push(...pooled.waiting.splice(0))
      else if (!pooled.coming && pooled.waiting.length > 0) waitForMemory(pooled)
    } catch (error) {
      fault(pooled, error)
    }
  }

  const waitForMemory = (pooled: PooledLane) => {
    if (performance.now() - pooled.waiting_since_ms > memoryWaitMsMax) {
      const busy = new ApiError(
        'overloaded',
        'Other models are using all the memory for requests. Try again in a moment.',
      )
      for (const generation of pooled.waiting.splice(0)) failGeneration(generation, busy)
    }
  }

  const withWork = (): PooledLane[] => {
    for (const pooled of pool.all()) admit(pooled)
    return pool.all().filter((pooled) => pooled.lane && hasWork(pooled))
  }

  setInterval(() => {
    pool.closeIdle(performance.now())
    // Whoever waits for memory is told when it has been too long, also while nothing runs.
    if (pool.all().some(({ waiting }) => waiting.length > 0)) wake()
    else settle()
  }, idleCheckMs).unref()

  return {
    submit(served, submissions) {
      const waiting = pool.all().reduce((sum, pooled) => (pooled.served === served ? sum + waitingIn(pooled) : sum), 0)
      // One request may ask for many answers; it is not refused for its own sake.
      if (waiting > 0 && waiting + submissions.length > waitingMax)
        throw new ApiError(
          'overloaded',
          `${waiting} requests for ${served.name} are waiting already. Try again in a moment.`,
        )
      const generations = submissions.map(({ size, request, events }) => {
        const pooled = pool.get(served, size)
        const generation = createGeneration(request, events)
        waitIn(pooled, generation)
        return generation
      })
      idle ??= hooks.onBusy()
      wake()
      return generations.map((generation) => ({ cancel: () => cancel(generation), progress: () => generation }))
    },
    async release(served) {
      for (const pooled of pool.all().filter((other) => other.served === served)) pool.close(pooled)
      settle()
      await pool.settled(served)
    },
    counts() {
      const sum = (of: (pooled: PooledLane) => number) => pool.all().reduce((total, pooled) => total + of(pooled), 0)
      return {
        running: sum(({ lane }) => lane?.running() ?? 0),
        waiting: sum(waitingIn),
        lanes: sum(({ lane }) => (lane ? 1 : 0)),
        lane_bytes: pool.bytes(),
      }
    },
  }
}

function cancel(generation: Generation): void {
  // The lane sees it before its next step, and the slot is free for another request then.
  generation.cancelled = true
}

function waitingIn({ lane, waiting }: PooledLane): number {
  return waiting.length + (lane?.waiting.length ?? 0)
}
