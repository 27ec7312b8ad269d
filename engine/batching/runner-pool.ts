// Runner pool: all batch runners and the memory they share. An idle runner stays for a while, as creating one takes a
// tenth of a second, and is evicted (LRU) when another needs its memory. A runner that is too small moves into a
// context with more slots.
import { ApiError } from '../../contract/errors.ts'
import type { Context } from '../llama/context.ts'
import type { Adapter } from '../models/adapters.ts'
import type { ServedModel } from '../models/models.ts'
import { createDrafting, type Drafting } from '../sampling/drafts/drafter.ts'
import { failGeneration, type Generation } from './generation.ts'
import { Runner, type RunnerOptions } from './runner.ts'
import { type MemoryLimits, type RunnerShape, runnerShapes } from './slot-sizes.ts'

export interface Backend {
  makeContext(served: ServedModel, slots: number, tokensPerSlot: number, batchTokens: number): Context
  /** The same on another thread, so that decoding continues. */
  makeContextAsync(served: ServedModel, slots: number, tokensPerSlot: number, batchTokens: number): Promise<Context>
  /** Attaches another adapter of the same base to a context. Rejects, and frees it, if that is not possible. */
  passContext(context: Context, adapter: Adapter): Promise<Context>
  /** Number of adapters in memory. */
  adapters(): number
  /** Enables speculative decoding. */
  speculate: boolean
}

export interface PooledRunner {
  served: ServedModel
  /** Index of `shape` in the model's size classes. */
  size_class: number
  shape: RunnerShape
  runner: Runner | null
  /** A context in creation; `context` is null until it is ready. The runner takes it at the next `ensureRunner`. */
  pending_context: { slots: number; context: Context | null } | null
  /** Requests that wait for the runner to exist. */
  waiting: Generation[]
  waiting_since_ms: number
  /** Earliest time to try to grow again after a failure. */
  grow_retry_at_ms: number
  closed: boolean
}
interface PoolHooks {
  /** A context is ready, or could not be created. */
  onChange(): void
  /** A runner could not be created. */
  onFault(pooled: PooledRunner, error: unknown): void
  /** An unexpected error that does not stop the runner, such as one failed generation. */
  onGenerationFault(pooled: PooledRunner, error: unknown): void
}

const batchTokens = 1024
const idle_ms_max = 60_000
const grow_retry_ms = 10_000
const idleRunnersMax = 4
/** With more idle runners of a base than this, a new one takes the context of the least recently used. */
const idleContextsMax = 16
// Memory of a context for compute buffers and logits, as measured with small models, and what each adapter in memory
// adds to it.
const contextBytes = 48 * 1024 * 1024
const bytesPerAdapter = 1024 * 1024

export class RunnerPool {
  private readonly backend: Backend
  private readonly limits: MemoryLimits
  private readonly hooks: PoolHooks
  private runners: PooledRunner[] = []
  private readonly draftings = new WeakMap<ServedModel, Drafting>()
  private readonly creations = new Set<{ pooled: PooledRunner; slots: number; done: Promise<void> }>()

  constructor(backend: Backend, limits: MemoryLimits, hooks: PoolHooks) {
    this.backend = backend
    this.limits = limits
    this.hooks = hooks
  }

  all(): PooledRunner[] {
    return this.runners
  }

  bytes(): number {
    return this.runners.reduce((sum, pooled) => sum + this.bytesOf(pooled), this.closedBytes())
  }

  close(pooled: PooledRunner): void {
    this.runners = this.runners.filter((other) => other !== pooled)
    pooled.closed = true
    for (const generation of pooled.waiting.splice(0))
      failGeneration(generation, new ApiError('engine_unavailable', 'The model was unloaded.'))
    pooled.runner?.close()
    pooled.pending_context?.context?.free()
    pooled.runner = null
    pooled.pending_context = null
  }

  get(served: ServedModel, size_class: number): PooledRunner {
    const runner = this.runners.find((pooled) => pooled.served === served && pooled.size_class === size_class)
    if (runner) return runner
    const shape = runnerShapes(served.model, this.limits)[size_class]!
    const pooled: PooledRunner = {
      served,
      size_class,
      shape,
      runner: null,
      pending_context: null,
      waiting: [],
      waiting_since_ms: performance.now(),
      grow_retry_at_ms: 0,
      closed: false,
    }
    this.runners.push(pooled)
    return pooled
  }

  /** Resolves when no context of the model is in creation. */
  async contextsSettled(served: ServedModel): Promise<void> {
    await Promise.all(
      [...this.creations].filter((creation) => creation.pooled.served === served).map(({ done }) => done),
    )
  }

  /**
   * The runner, or null while there is none. Starts creating one, or a bigger one, if requests wait and memory allows.
   */
  ensureRunner(pooled: PooledRunner): Runner | null {
    const pending = pooled.pending_context
    if (pending?.context) {
      pooled.pending_context = null
      if (pooled.runner) pooled.runner.growInto(pending.context, pending.slots)
      else pooled.runner = this.makeRunner(pooled, pending.slots, pending.context)
    }
    if (!pooled.pending_context) {
      const slots = this.slotsToMake(pooled)
      if (slots > 0) this.startContext(pooled, slots)
    }
    return pooled.runner
  }

  closeIdle(now_ms: number): void {
    const idle = this.idleLeastRecentFirst()
    for (const pooled of idle.slice(0, Math.max(0, idle.length - idleRunnersMax)))
      if (now_ms - usedAt(pooled) > idle_ms_max) this.close(pooled)
    for (const pooled of this.runners.filter(
      (other) => !other.runner && !other.pending_context && other.waiting.length === 0,
    ))
      this.close(pooled)
  }

  private draftingOf(served: ServedModel): Drafting {
    const drafting = this.draftings.get(served) ?? createDrafting(() => served.drafts)
    this.draftings.set(served, drafting)
    return drafting
  }

  private bytesFor(pooled: PooledRunner, slots: number): number {
    return contextBytes + this.backend.adapters() * bytesPerAdapter + slots * pooled.shape.bytes_per_slot
  }

  private bytesOf(pooled: PooledRunner): number {
    return [pooled.runner?.slotCount(), pooled.pending_context?.slots].reduce<number>(
      (sum, slots) => sum + (slots ? this.bytesFor(pooled, slots) : 0),
      0,
    )
  }

  /** Contexts in creation for closed runners use memory too, until they are ready and freed. */
  private closedBytes(): number {
    return [...this.creations].reduce(
      (sum, { pooled, slots }) => (pooled.closed ? sum + this.bytesFor(pooled, slots) : sum),
      0,
    )
  }

  private idleLeastRecentFirst(): PooledRunner[] {
    return this.runners.filter(isIdle).sort((a, b) => usedAt(a) - usedAt(b))
  }

  /** Closes idle runners until `needed` bytes are free. False, without closing any, if that is not enough. */
  private makeRoom(needed: number): boolean {
    const idle_bytes = this.idleLeastRecentFirst().reduce((sum, pooled) => sum + this.bytesOf(pooled), 0)
    if (this.bytes() - idle_bytes + needed > this.limits.total_bytes) return false
    for (const idle of this.idleLeastRecentFirst()) {
      if (this.bytes() + needed <= this.limits.total_bytes) return true
      this.close(idle)
    }
    return this.bytes() + needed <= this.limits.total_bytes
  }

  private importPrefixFor(pooled: PooledRunner): RunnerOptions['importPrefix'] {
    const { served } = pooled
    return (prompt, account, tokens) => {
      for (const other of this.runners) {
        const prefix =
          other !== pooled && other.served === served
            ? other.runner?.exportPrefix(prompt, account, tokens, pooled.shape.tokens_per_slot)
            : null
        if (prefix) return prefix
      }
      return null
    }
  }

  private makeRunner(pooled: PooledRunner, slots: number, context: Context): Runner {
    const { served, shape, size_class } = pooled
    return new Runner({
      vocab: served.model.vocab,
      context,
      slots,
      tokens_per_slot: shape.tokens_per_slot,
      batch_tokens: batchTokens,
      can_share_prefix: served.model.can_truncate_cache,
      uses_mrope: served.model.uses_mrope,
      drafting: this.backend.speculate ? this.draftingOf(served) : null,
      makeContext: (count) => this.backend.makeContext(served, count, shape.tokens_per_slot, batchTokens),
      onFault: (error) => this.hooks.onGenerationFault(pooled, error),
      onOutgrown: (generation) => enqueue(this.get(served, size_class + 1), generation),
      importPrefix: this.importPrefixFor(pooled),
    })
  }

  /**
   * The least recently used of many idle runners with a context like the one that is needed. Making one takes a tenth
   * of a second of both cores, and with hundreds of adapters most requests need another one.
   */
  private replaceable(pooled: PooledRunner, slots: number): PooledRunner | undefined {
    const { model, adapter } = pooled.served
    if (!adapter || pooled.runner) return undefined
    const idle = this.idleLeastRecentFirst().filter(({ served }) => served.adapter && served.model === model)
    const isAlike = ({ size_class, runner }: PooledRunner) =>
      size_class === pooled.size_class && runner!.slotCount() === slots
    return idle.slice(0, Math.max(0, idle.length - idleContextsMax)).find(isAlike)
  }

  private contextFor(pooled: PooledRunner, slots: number): Promise<Context> {
    const idle = this.replaceable(pooled, slots)
    const { adapter } = pooled.served
    if (!idle || !adapter)
      return this.backend.makeContextAsync(pooled.served, slots, pooled.shape.tokens_per_slot, batchTokens)
    const context = idle.runner!.giveContext()
    idle.runner = null
    this.close(idle)
    return this.backend.passContext(context, adapter)
  }

  private startContext(pooled: PooledRunner, slots: number): void {
    const pending: PooledRunner['pending_context'] = { slots, context: null }
    pooled.pending_context = pending
    const done = this.contextFor(pooled, slots).then(
      (context) => {
        if (pooled.closed) return context.free()
        pending.context = context
        this.hooks.onChange()
      },
      (error) => {
        pooled.pending_context = null
        // A runner that cannot grow continues with the slots it has.
        pooled.grow_retry_at_ms = performance.now() + grow_retry_ms
        if (pooled.runner) this.hooks.onGenerationFault(pooled, error)
        else if (!pooled.closed) this.hooks.onFault(pooled, error)
        this.hooks.onChange()
      },
    )
    const creation = { pooled, slots, done }
    this.creations.add(creation)
    void done.finally(() => this.creations.delete(creation))
  }

  /** Number of slots that the waiting requests need, within shape and memory; 0: do not grow now. */
  private slotsToMake(pooled: PooledRunner): number {
    const { runner, shape } = pooled
    const now = runner?.slotCount() ?? 0
    const waiting = pooled.waiting.length + (runner?.waiting.length ?? 0)
    const free = now - (runner?.running() ?? 0)
    if (waiting <= free || (runner && performance.now() < pooled.grow_retry_at_ms)) return 0
    // Most of hundreds of adapters get one request at a time.
    const first = pooled.served.adapter ? 1 : shape.slots_first
    let slots = Math.min(shape.slots, Math.max(runner ? now * 2 : first, nextPowerOfTwo(waiting + now - free)))
    if (this.replaceable(pooled, slots)) return slots
    while (slots > now && !this.makeRoom(this.bytesFor(pooled, slots))) slots = Math.floor(slots / 2)
    if (slots > now) return slots
    // The only runner may exceed the limit with one slot: otherwise the model could not run at all.
    return !runner && this.bytes() === 0 ? 1 : 0
  }
}

const isIdle = (pooled: PooledRunner) => pooled.runner !== null && !pooled.pending_context && !hasWork(pooled)
const usedAt = ({ runner }: PooledRunner) => runner?.used_at_ms ?? 0

export function enqueue(pooled: PooledRunner, generation: Generation): void {
  if (pooled.waiting.length === 0) pooled.waiting_since_ms = performance.now()
  pooled.waiting.push(generation)
}

export function hasWork({ runner, waiting }: PooledRunner): boolean {
  return waiting.length > 0 || (runner !== null && (runner.running() > 0 || runner.waiting.length > 0))
}

function nextPowerOfTwo(count: number): number {
  return 2 ** Math.ceil(Math.log2(Math.max(1, count)))
}
