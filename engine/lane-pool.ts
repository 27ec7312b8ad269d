// The lanes that exist, and the memory they share. A lane without requests is kept for a while, since making one costs a tenth of a
// second, and given up for another that needs its memory. A lane that is too small gets a bigger one beside it.
import { ApiError } from '../contract/errors.ts'
import { failGeneration, type Generation } from './generation.ts'
import { createLane, type Lane } from './lane.ts'
import { type LaneShape, laneShapes, type MemoryLimits, type SizeClass } from './lane-sizes.ts'
import type { Context } from './llama/context.ts'
import type { SamplingParams } from './llama/sampler.ts'
import type { Pointer } from './llama/structs.ts'
import type { ServedModel } from './served-model.ts'

export type Backend = {
  makeContext(served: ServedModel, slots: number, tokensPerSlot: number, batchTokens: number): Context
  makeSampler(params: SamplingParams): Pointer
  freeSampler(sampler: Pointer): void
}

export type PooledLane = {
  served: ServedModel
  size: SizeClass
  shape: LaneShape
  /** The last takes new requests; those before it were too small and end with their last request. */
  lanes: Lane[]
  /** Requests that no lane has taken yet, for want of memory. */
  waiting: Generation[]
  waiting_since_ms: number
}
export type LanePool = {
  all(): PooledLane[]
  get(served: ServedModel, size: SizeClass): PooledLane
  /** Makes a lane if there is none and memory allows. False: it must wait for another to end. Throws what the library throws. */
  open(pooled: PooledLane): boolean
  /** Makes a bigger lane for the requests that wait, if the shape and the memory allow. */
  grow(pooled: PooledLane): void
  /** Ends a lane whose last request has ended and which takes no more. */
  retire(pooled: PooledLane): void
  close(pooled: PooledLane): void
  closeIdle(nowMs: number): void
  bytes(): number
}

const batchTokens = 512
const idleMsMax = 60_000
const idleKept = 4
// Compute buffers and logits of a context, about what they were measured to be for small models.
const contextBytes = 48 * 1024 * 1024

export function createLanePool(backend: Backend, limits: MemoryLimits): LanePool {
  let pooledLanes: PooledLane[] = []
  const bytesFor = (pooled: PooledLane, slots: number) => contextBytes + slots * pooled.shape.bytes_per_slot
  const bytesOf = (pooled: PooledLane) => pooled.lanes.reduce((sum, lane) => sum + bytesFor(pooled, lane.slotCount()), 0)
  const bytes = () => pooledLanes.reduce((sum, pooled) => sum + bytesOf(pooled), 0)
  const isIdle = (pooled: PooledLane) => pooled.lanes.length > 0 && !hasWork(pooled)
  const usedAt = (pooled: PooledLane) => Math.max(...pooled.lanes.map((lane) => lane.used_at_ms))
  const idleOldestFirst = () => pooledLanes.filter(isIdle).sort((a, b) => usedAt(a) - usedAt(b))

  const makeRoom = (needed: number): boolean => {
    for (const idle of idleOldestFirst()) {
      if (bytes() + needed <= limits.total_bytes) return true
      close(idle)
    }
    return bytes() + needed <= limits.total_bytes
  }

  const close = (pooled: PooledLane) => {
    pooledLanes = pooledLanes.filter((other) => other !== pooled)
    for (const generation of pooled.waiting.splice(0)) failGeneration(generation, new ApiError('engine_unavailable', 'The model was unloaded.'))
    for (const lane of pooled.lanes.splice(0)) lane.close()
  }

  const add = ({ served, shape, lanes }: PooledLane, slots: number) =>
    lanes.push(
      createLane({
        vocab: served.model.vocab,
        slots,
        batch_tokens: batchTokens,
        can_share_prefix: served.model.can_share_prefix,
        makeContext: () => backend.makeContext(served, slots, shape.tokens_per_slot, batchTokens),
        makeSampler: backend.makeSampler,
        freeSampler: backend.freeSampler,
      }),
    )

  return {
    all: () => pooledLanes,
    bytes,
    close,
    get(served, size) {
      const found = pooledLanes.find((pooled) => pooled.served === served && pooled.size === size)
      if (found) return found
      const shapes = laneShapes(served.model, limits)
      const shape = (size === 'long' && shapes.long) || shapes.short
      const pooled: PooledLane = { served, size, shape, lanes: [], waiting: [], waiting_since_ms: performance.now() }
      pooledLanes.push(pooled)
      return pooled
    },
    open(pooled) {
      if (pooled.lanes.length > 0) return true
      let slots = Math.min(pooled.shape.slots, Math.max(pooled.shape.slots_first, nextPowerOfTwo(pooled.waiting.length)))
      while (slots > 1 && !makeRoom(bytesFor(pooled, slots))) slots = Math.floor(slots / 2)
      // A single lane may be over the limit: the smallest there is must run somewhere.
      if (!makeRoom(bytesFor(pooled, slots)) && bytes() > 0) return false
      add(pooled, slots)
      return true
    },
    grow(pooled) {
      const current = pooled.lanes.at(-1)!
      const slots = Math.min(pooled.shape.slots, Math.max(current.slotCount() * 2, nextPowerOfTwo(current.waiting.length)))
      if (slots <= current.slotCount() || !makeRoom(bytesFor(pooled, slots))) return
      add(pooled, slots)
      pooled.lanes.at(-1)!.waiting.push(...current.waiting.splice(0))
    },
    retire(pooled) {
      const ended = pooled.lanes.slice(0, -1).filter((lane) => lane.running() === 0)
      for (const lane of ended) lane.close()
      pooled.lanes = pooled.lanes.filter((lane) => !ended.includes(lane))
    },
    closeIdle(nowMs) {
      const idle = idleOldestFirst()
      for (const pooled of idle.slice(0, Math.max(0, idle.length - idleKept))) if (nowMs - usedAt(pooled) > idleMsMax) close(pooled)
      for (const pooled of pooledLanes.filter((other) => other.lanes.length === 0 && other.waiting.length === 0)) close(pooled)
    },
  }
}

export function hasWork({ lanes, waiting }: PooledLane): boolean {
  return waiting.length > 0 || lanes.some((lane) => lane.running() > 0 || lane.waiting.length > 0)
}

function nextPowerOfTwo(count: number): number {
  return 2 ** Math.ceil(Math.log2(Math.max(1, count)))
}
