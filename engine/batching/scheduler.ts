// Scheduler: runs one step of each batch runner in a round. Yields to the event loop after every step, so that new
// requests, disconnects and the end of the parent process are handled between any two steps.
import { setImmediate as yieldToEventLoop } from 'node:timers/promises'
import { ApiError } from '../../contract/errors.ts'
import type { ServedModel } from '../models/models.ts'
import { prefillBudget } from './chunked-prefill.ts'
import type { CpuThrottle } from './cpu-throttle.ts'
import {
  abandonGeneration,
  createGeneration,
  failGeneration,
  type Generation,
  type GenerationEvents,
  type GenerationRequest,
} from './generation.ts'
import type { StepStats } from './runner.ts'
import { type Backend, enqueue, hasWork, type PooledRunner, RunnerPool } from './runner-pool.ts'
import type { MemoryLimits } from './slot-sizes.ts'

export interface Submission {
  /** Index of the slot size to start with, in the model's `runnerShapes`. */
  size_class: number
  request: GenerationRequest
  events: GenerationEvents
}
export interface GenerationHandle {
  cancel(): void
  progress(): { completion_tokens: number; cached_tokens: number }
}
export interface SchedulerCounts {
  running: number
  waiting: number
  runners: number
  runner_bytes: number
  slots: number
  /** Share of the KV cache, by tokens, that running sequences use. */
  cache_usage: number
}

const waitingMax = 256
const memory_wait_ms_max = 10_000
const idle_check_ms = 5000
/** How long a step may compute prompts of background generations. */
const background_budget_ms = 60

interface Hooks {
  onStep(stats: StepStats): void
  onFault(error: unknown, model: string): void
  /** Called when the first request arrives. The returned function is called when none are left. */
  onBusy(): () => void
}

export class Scheduler {
  private readonly throttle: CpuThrottle
  private readonly hooks: Hooks
  private looping = false
  private backgroundHolds = 0
  private onIdle: (() => void) | null = null
  private readonly pool: RunnerPool

  constructor(backend: Backend, limits: MemoryLimits, throttle: CpuThrottle, hooks: Hooks) {
    this.throttle = throttle
    this.hooks = hooks
    this.pool = new RunnerPool(backend, limits, {
      onChange: () => this.wake(),
      onFault: (pooled, error) => this.failRunner(pooled, error),
      onGenerationFault: (pooled, error) => this.hooks.onFault(error, pooled.served.name),
    })
    setInterval(() => {
      this.pool.closeIdle(performance.now())
      // Requests that wait for memory time out in the loop, so wake it even if nothing runs.
      if (this.pool.all().some(({ waiting }) => waiting.length > 0)) this.wake()
      else this.notifyIfIdle()
    }, idle_check_ms).unref()
  }

  /**
   * Queues generations for one model, all or none, and returns a handle for each. Throws ApiError overloaded if the
   * queue is full.
   */
  submit(served: ServedModel, submissions: readonly Submission[]): GenerationHandle[] {
    const waiting = this.pool
      .all()
      .reduce((sum, pooled) => (pooled.served === served ? sum + waitingIn(pooled) : sum), 0)
    // A request with many answers is never rejected when nothing else waits.
    if (waiting > 0 && waiting + submissions.length > waitingMax)
      throw new ApiError(
        'overloaded',
        `${waiting} requests for ${served.name} are waiting already. Try again in a moment.`,
      )
    const generations = submissions.map(({ size_class, request, events }) => {
      const pooled = this.pool.get(served, size_class)
      const generation = createGeneration(request, events)
      enqueue(pooled, generation)
      return generation
    })
    this.onIdle ??= this.hooks.onBusy()
    this.wake()
    return generations.map((generation) => ({ cancel: () => cancel(generation), progress: () => generation }))
  }

  /**
   * Pauses background generations until the returned function is called: while another request is being prepared, each
   * turn of the event loop would cost it one of their steps.
   */
  holdBackground(): () => void {
    this.backgroundHolds++
    return () => {
      this.backgroundHolds--
      this.wake()
    }
  }

  /** Frees the runners of a model. Fails the generations that still run in them. */
  async release(served: ServedModel): Promise<void> {
    for (const pooled of this.pool.all().filter((other) => other.served === served)) this.pool.close(pooled)
    this.notifyIfIdle()
    await this.pool.contextsSettled(served)
  }

  counts(): SchedulerCounts {
    const sum = (of: (pooled: PooledRunner) => number) =>
      this.pool.all().reduce((total, pooled) => total + of(pooled), 0)
    const slotsOf = ({ runner }: PooledRunner) => runner?.slotCount() ?? 0
    const tokens = sum((pooled) => slotsOf(pooled) * pooled.shape.tokens_per_slot)
    return {
      running: sum(({ runner }) => runner?.running() ?? 0),
      waiting: sum(waitingIn),
      runners: sum(({ runner }) => (runner ? 1 : 0)),
      runner_bytes: this.pool.bytes(),
      slots: sum(slotsOf),
      cache_usage: tokens === 0 ? 0 : sum(({ runner }) => runner?.tokensInUse() ?? 0) / tokens,
    }
  }

  private failRunner(pooled: PooledRunner, error: unknown): void {
    this.hooks.onFault(error, pooled.served.name)
    for (const generation of pooled.waiting.splice(0))
      failGeneration(
        generation,
        new ApiError('engine_failed', `No batch runner could be created for ${pooled.served.name}.`),
      )
    this.pool.close(pooled)
  }

  private wake(): void {
    if (!this.looping) setImmediate(() => void (this.looping || this.loop()))
  }

  private async loop(): Promise<void> {
    this.looping = true
    const stepped = new Set<PooledRunner>()
    for (let busy = this.runnersToStep(); busy.length > 0; busy = this.runnersToStep()) {
      const left = busy.filter((pooled) => !stepped.has(pooled))
      if (left.length === 0) {
        stepped.clear()
        continue
      }
      // Those with prompts first, also if they came during the round: somebody waits for a first token.
      const next = left.find(({ runner }) => runner!.prefilling() > 0) ?? left[0]!
      stepped.add(next)
      this.stepOnce(next)
      await (this.throttle.pauseIfDue() ?? yieldToEventLoop())
    }
    this.looping = false
    this.notifyIfIdle()
  }

  /** Reports the end of work, once there is none. */
  private notifyIfIdle(): void {
    if (!this.onIdle || this.pool.all().some((pooled) => hasWork(pooled))) return
    this.onIdle()
    this.onIdle = null
  }

  private stepOnce(pooled: PooledRunner): void {
    const { runner } = pooled
    // It may have been closed during another runner's step.
    if (!runner) return
    try {
      const began_ms = performance.now()
      const { whole_ms, part_ms } = prefillBudget(this.pool.all().flatMap((other) => other.runner ?? []))
      // A request that arrives meanwhile waits for the end of the step.
      const most_ms = runner.hasForeground() ? whole_ms : Math.min(whole_ms, background_budget_ms)
      const stats = runner.step({ whole_ms: most_ms, part_ms: Math.min(part_ms, most_ms) })
      if (!stats) return
      this.throttle.recordCompute(performance.now() - began_ms)
      this.hooks.onStep(stats)
      if (stats.failed)
        this.hooks.onFault(new Error('llama_decode failed; the batch runner was rebuilt'), pooled.served.name)
    } catch (error) {
      this.failRunner(pooled, error)
    }
  }

  /** Moves waiting requests to their runner, once it exists. */
  private admit(pooled: PooledRunner): void {
    try {
      for (const generation of pooled.waiting) if (generation.cancelled) abandonGeneration(generation)
      pooled.waiting = pooled.waiting.filter((generation) => generation.state === 'waiting')
      // Take a finished context even if its requests are gone: only a runner can be evicted as idle.
      if (!hasWork(pooled) && !pooled.pending_context?.context) return
      let runner = this.pool.ensureRunner(pooled)
      if (!runner && !pooled.pending_context && pooled.waiting.some(({ request }) => !request.background)) {
        for (const other of this.pool.all()) other.runner?.dropBackground()
        runner = this.pool.ensureRunner(pooled)
      }
      if (runner) runner.waiting.push(...pooled.waiting.splice(0))
      else if (!pooled.pending_context && pooled.waiting.length > 0) this.failIfMemoryWaitTooLong(pooled)
    } catch (error) {
      this.failRunner(pooled, error)
    }
  }

  /** Fails the waiting requests once they have waited too long for memory. */
  private failIfMemoryWaitTooLong(pooled: PooledRunner): void {
    if (performance.now() - pooled.waiting_since_ms > memory_wait_ms_max) {
      const overloaded = new ApiError(
        'overloaded',
        'Other models are using all the memory for requests. Try again in a moment.',
      )
      for (const generation of pooled.waiting.splice(0)) failGeneration(generation, overloaded)
    }
  }

  /** Background generations wait while a runner has any other one, or one is being prepared. */
  private runnersToStep(): PooledRunner[] {
    for (const pooled of this.pool.all()) this.admit(pooled)
    const busy = this.pool.all().filter((pooled) => pooled.runner && hasWork(pooled))
    const foreground = busy.filter(({ runner }) => runner!.hasForeground())
    const paused = this.backgroundHolds > 0 || foreground.length > 0
    for (const { runner } of busy) runner!.background_paused = paused
    return paused ? foreground : busy
  }
}

function cancel(generation: Generation): void {
  // The runner frees the slot before its next step.
  generation.cancelled = true
}

function waitingIn({ runner, waiting }: PooledRunner): number {
  return waiting.length + (runner?.waiting.length ?? 0)
}
