// The lanes that exist, and the memory they share. A lane without requests is kept for a while, since making one costs
// a tenth of a second, and given up for another that needs its memory. A lane that is too small moves into a bigger
// one.
import { ApiError } from '../../contract/errors.ts'
import type { Context } from '../llama/context.ts'
import type { ServedModel } from '../models/models.ts'
import { failGeneration, type Generation } from './generation.ts'
import { createLane, type Lane, type LaneOptions } from './runner.ts'
import { type LaneShape, laneShapes, type MemoryLimits } from './slot-sizes.ts'

export type Backend = {
  makeContext(served: ServedModel, slots: number, tokensPerSlot: number, batchTokens: number): Context
  /** The same without holding up what is computed meanwhile. */
  makeContextAside(served: ServedModel, slots: number, tokensPerSlot: number, batchTokens: number): Promise<Context>
  /** How many adapters are in memory. */
  adapters(): number
  /** Whether next tokens may be guessed. */
  speculate: boolean
}

export type PooledLane = {
  served: ServedModel
  /** The place of `shape` among those of the model. */
  size: number
  shape: LaneShape
  lane: Lane | null
  /** A context that is being made for the lane, and then the context until the lane takes it. */
  coming: { slots: number; context: Context | null } | null
  /** Requests that no lane has taken yet. */
  waiting: Generation[]
  waiting_since_ms: number
  /** When growing may be tried again, after it failed. */
  grow_at_ms: number
  closed: boolean
}
export type LanePool = {
  all(): PooledLane[]
  get(served: ServedModel, size: number): PooledLane
  /**
   * The lane, with as many slots as have been made; null while there is none. Begins to make one, or a bigger one,
   * where memory allows.
   */
  ready(pooled: PooledLane): Lane | null
  close(pooled: PooledLane): void
  /** Resolves when no context of the model is being made any more. */
  settled(served: ServedModel): Promise<void>
  closeIdle(nowMs: number): void
  bytes(): number
}
export type PoolHooks = {
  /** A lane has become ready, or cannot be made. */
  onChange(): void
  onFault(pooled: PooledLane, error: unknown): void
  /** One answer failed by what should not happen. */
  onAnswerFault(pooled: PooledLane, error: unknown): void
}

const batchTokens = 1024
const idleMsMax = 60_000
const growAgainMs = 10_000
const idleKept = 4
// Compute buffers and logits of a context, about what they were measured to be for small models, and what each adapter
// in memory adds.
const contextBytes = 48 * 1024 * 1024
const bytesPerAdapter = 1024 * 1024

export function createLanePool(backend: Backend, limits: MemoryLimits, hooks: PoolHooks): LanePool {
  let pooledLanes: PooledLane[] = []
  const underWay = new Set<{ pooled: PooledLane; slots: number; made: Promise<void> }>()
  const bytesFor = (pooled: PooledLane, slots: number) =>
    contextBytes + backend.adapters() * bytesPerAdapter + slots * pooled.shape.bytes_per_slot
  const bytesOf = (pooled: PooledLane) =>
    [pooled.lane?.slotCount(), pooled.coming?.slots].reduce<number>(
      (sum, slots) => sum + (slots ? bytesFor(pooled, slots) : 0),
      0,
    )
  /** What is being made for lanes that were closed meanwhile is memory too, until it is there and freed. */
  const abandonedBytes = () =>
    [...underWay].reduce((sum, { pooled, slots }) => (pooled.closed ? sum + bytesFor(pooled, slots) : sum), 0)
  const bytes = () => pooledLanes.reduce((sum, pooled) => sum + bytesOf(pooled), abandonedBytes())
  const isIdle = (pooled: PooledLane) => pooled.lane !== null && !pooled.coming && !hasWork(pooled)
  const usedAt = (pooled: PooledLane) => pooled.lane?.used_at_ms ?? 0
  const idleOldestFirst = () => pooledLanes.filter(isIdle).sort((a, b) => usedAt(a) - usedAt(b))

  const makeRoom = (needed: number): boolean => {
    const idle_bytes = idleOldestFirst().reduce((sum, pooled) => sum + bytesOf(pooled), 0)
    if (bytes() - idle_bytes + needed > limits.total_bytes) return false
    for (const idle of idleOldestFirst()) {
      if (bytes() + needed <= limits.total_bytes) return true
      close(idle)
    }
    return bytes() + needed <= limits.total_bytes
  }

  const close = (pooled: PooledLane) => {
    pooledLanes = pooledLanes.filter((other) => other !== pooled)
    pooled.closed = true
    for (const generation of pooled.waiting.splice(0))
      failGeneration(generation, new ApiError('engine_unavailable', 'The model was unloaded.'))
    pooled.lane?.close()
    pooled.coming?.context?.free()
    pooled.lane = null
    pooled.coming = null
  }

  const get = (served: ServedModel, size: number): PooledLane => {
    const found = pooledLanes.find((pooled) => pooled.served === served && pooled.size === size)
    if (found) return found
    const shape = laneShapes(served.model, limits)[size]!
    const pooled: PooledLane = {
      served,
      size,
      shape,
      lane: null,
      coming: null,
      waiting: [],
      waiting_since_ms: performance.now(),
      grow_at_ms: 0,
      closed: false,
    }
    pooledLanes.push(pooled)
    return pooled
  }

  const borrow = (pooled: PooledLane): LaneOptions['borrow'] => {
    const { served } = pooled
    return (prompt, account, tokens) => {
      for (const other of pooledLanes) {
        const lent =
          other !== pooled && other.served === served
            ? other.lane?.lend(prompt, account, tokens, pooled.shape.tokens_per_slot)
            : null
        if (lent) return lent
      }
      return null
    }
  }

  const make = (pooled: PooledLane, slots: number, context: Context): Lane => {
    const { served, shape, size } = pooled
    return createLane({
      vocab: served.model.vocab,
      context,
      slots,
      tokens_per_slot: shape.tokens_per_slot,
      batch_tokens: batchTokens,
      can_share_prefix: served.model.can_share_prefix,
      speculate: backend.speculate,
      makeContext: (count) => backend.makeContext(served, count, shape.tokens_per_slot, batchTokens),
      onFault: (error) => hooks.onAnswerFault(pooled, error),
      onOutgrown: (generation) => waitIn(get(served, size + 1), generation),
      borrow: borrow(pooled),
    })
  }

  const begin = (pooled: PooledLane, slots: number) => {
    const coming: PooledLane['coming'] = { slots, context: null }
    pooled.coming = coming
    const made = backend.makeContextAside(pooled.served, slots, pooled.shape.tokens_per_slot, batchTokens).then(
      (context) => {
        if (pooled.closed) return context.free()
        coming.context = context
        hooks.onChange()
      },
      (error) => {
        pooled.coming = null
        // A lane that cannot grow goes on as it is.
        pooled.grow_at_ms = performance.now() + growAgainMs
        if (pooled.lane) hooks.onAnswerFault(pooled, error)
        else if (!pooled.closed) hooks.onFault(pooled, error)
        hooks.onChange()
      },
    )
    const making = { pooled, slots, made }
    underWay.add(making)
    void made.finally(() => underWay.delete(making))
  }

  /** How many slots the waiting requests call for, as far as shape and memory allow; 0 where no more can be had now. */
  const slotsToMake = (pooled: PooledLane): number => {
    const { lane, shape } = pooled
    const now = lane?.slotCount() ?? 0
    const waiting = pooled.waiting.length + (lane?.waiting.length ?? 0)
    const free = now - (lane?.running() ?? 0)
    if (waiting <= free || (lane && performance.now() < pooled.grow_at_ms)) return 0
    // Of hundreds of adapters most are asked one thing at a time.
    const first = pooled.served.adapter ? 1 : shape.slots_first
    let slots = Math.min(shape.slots, Math.max(lane ? now * 2 : first, nextPowerOfTwo(waiting + now - free)))
    while (slots > now && !makeRoom(bytesFor(pooled, slots))) slots = Math.floor(slots / 2)
    if (slots > now) return slots
    // A single lane may be over the limit: the smallest there is must run somewhere.
    return !lane && bytes() === 0 ? 1 : 0
  }

  return {
    all: () => pooledLanes,
    bytes,
    close,
    get,
    async settled(served) {
      await Promise.all([...underWay].filter((each) => each.pooled.served === served).map(({ made }) => made))
    },
    ready(pooled) {
      const { coming } = pooled
      if (coming?.context) {
        pooled.coming = null
        if (pooled.lane) pooled.lane.moveInto(coming.context, coming.slots)
        else pooled.lane = make(pooled, coming.slots, coming.context)
      }
      if (!pooled.coming) {
        const slots = slotsToMake(pooled)
        if (slots > 0) begin(pooled, slots)
      }
      return pooled.lane
    },
    closeIdle(nowMs) {
      const idle = idleOldestFirst()
      for (const pooled of idle.slice(0, Math.max(0, idle.length - idleKept)))
        if (nowMs - usedAt(pooled) > idleMsMax) close(pooled)
      for (const pooled of pooledLanes.filter((other) => !other.lane && !other.coming && other.waiting.length === 0))
        close(pooled)
    },
  }
}

export function waitIn(pooled: PooledLane, generation: Generation): void {
  if (pooled.waiting.length === 0) pooled.waiting_since_ms = performance.now()
  pooled.waiting.push(generation)
}

export function hasWork({ lane, waiting }: PooledLane): boolean {
  return waiting.length > 0 || (lane !== null && (lane.running() > 0 || lane.waiting.length > 0))
}

function nextPowerOfTwo(count: number): number {
  return 2 ** Math.ceil(Math.log2(Math.max(1, count)))
}
