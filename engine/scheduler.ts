// The loop that computes: one lane after another, one step each, and a turn of the event loop after every step, so that new
// requests, hang-ups and the end of the parent are seen between any two steps.
import { setImmediate as nextTurn } from 'node:timers/promises'
import { ApiError } from '../contract/errors.ts'
import { createGeneration, failGeneration, type Generation, type GenerationEvents, type GenerationRequest } from './generation.ts'
import type { Lane, StepStats } from './lane.ts'
import { hasWork, type LanePool, type PooledLane } from './lane-pool.ts'
import type { SizeClass } from './lane-sizes.ts'
import type { ServedModel } from './served-model.ts'

export type SchedulerCounts = { running: number; waiting: number; lanes: number; lane_bytes: number }
export type Scheduler = {
  /** Queues a generation and returns the way to cancel it. Throws ApiError engine_unavailable when the queue is full. */
  submit(served: ServedModel, size: SizeClass, request: GenerationRequest, events: GenerationEvents): { cancel(): void }
  /** Frees the lanes of a model, failing what still runs in them. */
  release(served: ServedModel): void
  counts(): SchedulerCounts
}

const waitingMax = 256
// A long prompt is computed in pieces of about this time, all lanes together: the other streams wait no longer.
const promptMsMax = 100
const memoryWaitMsMax = 10_000
const idleCheckMs = 10_000

type Hooks = { onStep(stats: StepStats): void; onFault(error: unknown, model: string): void }

export function createScheduler(pool: LanePool, hooks: Hooks): Scheduler {
  let looping = false

  const loop = async () => {
    looping = true
    for (let busy = withWork(); busy.length > 0 || pool.all().some(hasWork); busy = withWork()) {
      let stepped = false
      for (const { pooled, lane } of busy) {
        if (!stepOnce(pooled, lane, promptMsMax / busy.length)) continue
        stepped = true
        await nextTurn()
      }
      if (!stepped) await nextTurn()
    }
    looping = false
  }

  const stepOnce = (pooled: PooledLane, lane: Lane, promptMs: number): boolean => {
    // It may have been closed while another was stepped.
    if (!pooled.lanes.includes(lane)) return false
    try {
      const stats = lane.step(promptMs)
      if (lane.waiting.length > 0 && lane.running() === lane.slotCount()) pool.grow(pooled)
      pool.retire(pooled)
      if (!stats) return false
      hooks.onStep(stats)
      if (stats.failed) hooks.onFault(new Error('llama_decode failed; the lane was rebuilt'), pooled.served.name)
      return true
    } catch (error) {
      fault(pooled, error)
      return false
    }
  }

  /** Hands what waits for a lane to one, made if need be. */
  const admit = (pooled: PooledLane) => {
    try {
      pooled.waiting = pooled.waiting.filter((generation) => !generation.cancelled)
      if (pooled.waiting.length === 0) return
      if (pool.open(pooled)) pooled.lanes.at(-1)!.waiting.push(...pooled.waiting.splice(0))
      else waitForMemory(pooled)
    } catch (error) {
      fault(pooled, error)
    }
  }

  const fault = (pooled: PooledLane, error: unknown) => {
    hooks.onFault(error, pooled.served.name)
    for (const generation of pooled.waiting.splice(0))
      failGeneration(generation, new ApiError('engine_failed', `No lane could be made for ${pooled.served.name}.`))
    pool.close(pooled)
  }

  const waitForMemory = (pooled: PooledLane) => {
    if (performance.now() - pooled.waiting_since_ms > memoryWaitMsMax) {
      const busy = new ApiError('engine_unavailable', 'Other models are using all the memory for requests. Try again in a moment.')
      for (const generation of pooled.waiting.splice(0)) failGeneration(generation, busy)
    }
  }

  const withWork = (): { pooled: PooledLane; lane: Lane }[] => {
    for (const pooled of pool.all()) admit(pooled)
    return pool.all().flatMap((pooled) => pooled.lanes.filter((lane) => lane.running() > 0 || lane.waiting.length > 0).map((lane) => ({ pooled, lane })))
  }

  setInterval(() => pool.closeIdle(performance.now()), idleCheckMs).unref()

  return {
    submit(served, size, request, events) {
      const pooled = pool.get(served, size)
      if (waitingIn(pooled) >= waitingMax)
        throw new ApiError('engine_unavailable', `${waitingMax} requests for ${served.name} are waiting already. Try again in a moment.`)
      if (pooled.waiting.length === 0) pooled.waiting_since_ms = performance.now()
      const generation = createGeneration(request, events)
      pooled.waiting.push(generation)
      if (!looping) setImmediate(() => void (looping || loop()))
      return { cancel: () => cancel(generation) }
    },
    release(served) {
      for (const pooled of pool.all().filter((other) => other.served === served)) pool.close(pooled)
    },
    counts() {
      const sum = (of: (pooled: PooledLane) => number) => pool.all().reduce((total, pooled) => total + of(pooled), 0)
      return {
        running: sum(({ lanes }) => lanes.reduce((total, lane) => total + lane.running(), 0)),
        waiting: sum(waitingIn),
        lanes: sum(({ lanes }) => lanes.length),
        lane_bytes: pool.bytes(),
      }
    },
  }
}

function cancel(generation: Generation): void {
  // The lane sees it before its next step, and the slot is free for another request then.
  generation.cancelled = true
}

function waitingIn({ lanes, waiting }: PooledLane): number {
  return lanes.reduce((total, lane) => total + lane.waiting.length, waiting.length)
}
