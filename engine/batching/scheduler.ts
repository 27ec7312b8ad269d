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
import { type Backend, createRunnerPool, enqueue, hasWork, type PooledRunner } from './runner-pool.ts'
import type { MemoryLimits } from './slot-sizes.ts'

interface Submission {
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
export interface Scheduler {
  /**
   * Queues generations for one model, all or none, and returns a handle for each. Throws ApiError overloaded if the
   * queue is full.
   */
  submit(served: ServedModel, submissions: readonly Submission[]): GenerationHandle[]
  /**
   * Pauses background generations until the returned function is called: while another request is being prepared, each
   * turn of the event loop would cost it one of their steps.
   */
  holdBackground(): () => void
  /** Frees the runners of a model. Fails the generations that still run in them. */
  release(served: ServedModel): Promise<void>
  counts(): SchedulerCounts
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

export function createScheduler(
  backend: Backend,
  limits: MemoryLimits,
  throttle: CpuThrottle,
  hooks: Hooks,
): Scheduler {
  let looping = false
  let backgroundHolds = 0
  let onIdle: (() => void) | null = null

  const failRunner = (pooled: PooledRunner, error: unknown) => {
    hooks.onFault(error, pooled.served.name)
    for (const generation of pooled.waiting.splice(0))
      failGeneration(
        generation,
        new ApiError('engine_failed', `No batch runner could be created for ${pooled.served.name}.`),
      )
    pool.close(pooled)
  }
  const wake = () => {
    if (!looping) setImmediate(() => void (looping || loop()))
  }
  const pool = createRunnerPool(backend, limits, {
    onChange: wake,
    onFault: failRunner,
    onGenerationFault: (pooled, error) => hooks.onFault(error, pooled.served.name),
  })

  const loop = async () => {
    looping = true
    const stepped = new Set<PooledRunner>()
    for (let busy = runnersToStep(); busy.length > 0; busy = runnersToStep()) {
      const left = busy.filter((pooled) => !stepped.has(pooled))
      if (left.length === 0) {
        stepped.clear()
        continue
      }
      // Those with prompts first, also if they came during the round: somebody waits for a first token.
      const next = left.find(({ runner }) => runner!.prefilling() > 0) ?? left[0]!
      stepped.add(next)
      stepOnce(next)
      await (throttle.pauseIfDue() ?? yieldToEventLoop())
    }
    looping = false
    notifyIfIdle()
  }

  /** Reports the end of work, once there is none. */
  const notifyIfIdle = () => {
    if (!onIdle || pool.all().some((pooled) => hasWork(pooled))) return
    onIdle()
    onIdle = null
  }

  const stepOnce = (pooled: PooledRunner) => {
    const { runner } = pooled
    // It may have been closed during another runner's step.
    if (!runner) return
    try {
      const began_ms = performance.now()
      const { whole_ms, part_ms } = prefillBudget(pool.all().flatMap((other) => other.runner ?? []))
      // A request that arrives meanwhile waits for the end of the step.
      const most_ms = runner.hasForeground() ? whole_ms : Math.min(whole_ms, background_budget_ms)
      const stats = runner.step({ whole_ms: most_ms, part_ms: Math.min(part_ms, most_ms) })
      if (!stats) return
      throttle.recordCompute(performance.now() - began_ms)
      hooks.onStep(stats)
      if (stats.failed)
        hooks.onFault(new Error('llama_decode failed; the batch runner was rebuilt'), pooled.served.name)
    } catch (error) {
      failRunner(pooled, error)
    }
  }

  /** Moves waiting requests to their runner, once it exists. */
  const admit = (pooled: PooledRunner) => {
    try {
      for (const generation of pooled.waiting) if (generation.cancelled) abandonGeneration(generation)
      pooled.waiting = pooled.waiting.filter((generation) => generation.state === 'waiting')
      // Take a finished context even if its requests are gone: only a runner can be evicted as idle.
      if (!hasWork(pooled) && !pooled.pending_context?.context) return
      let runner = pool.ensureRunner(pooled)
      if (!runner && !pooled.pending_context && pooled.waiting.some(({ request }) => !request.background)) {
        for (const other of pool.all()) other.runner?.dropBackground()
        runner = pool.ensureRunner(pooled)
      }
      if (runner) runner.waiting.push(...pooled.waiting.splice(0))
      else if (!pooled.pending_context && pooled.waiting.length > 0) failIfMemoryWaitTooLong(pooled)
    } catch (error) {
      failRunner(pooled, error)
    }
  }

  /** Fails the waiting requests once they have waited too long for memory. */
  const failIfMemoryWaitTooLong = (pooled: PooledRunner) => {
    if (performance.now() - pooled.waiting_since_ms > memory_wait_ms_max) {
      const overloaded = new ApiError(
        'overloaded',
        'Other models are using all the memory for requests. Try again in a moment.',
      )
      for (const generation of pooled.waiting.splice(0)) failGeneration(generation, overloaded)
    }
  }

  /** Background generations wait while a runner has any other one, or one is being prepared. */
  const runnersToStep = (): PooledRunner[] => {
    for (const pooled of pool.all()) admit(pooled)
    const busy = pool.all().filter((pooled) => pooled.runner && hasWork(pooled))
    const foreground = busy.filter(({ runner }) => runner!.hasForeground())
    const paused = backgroundHolds > 0 || foreground.length > 0
    for (const { runner } of busy) runner!.background_paused = paused
    return paused ? foreground : busy
  }

  setInterval(() => {
    pool.closeIdle(performance.now())
    // Requests that wait for memory time out in the loop, so wake it even if nothing runs.
    if (pool.all().some(({ waiting }) => waiting.length > 0)) wake()
    else notifyIfIdle()
  }, idle_check_ms).unref()

  return {
    submit(served, submissions) {
      const waiting = pool.all().reduce((sum, pooled) => (pooled.served === served ? sum + waitingIn(pooled) : sum), 0)
      // A request with many answers is never rejected when nothing else waits.
      if (waiting > 0 && waiting + submissions.length > waitingMax)
        throw new ApiError(
          'overloaded',
          `${waiting} requests for ${served.name} are waiting already. Try again in a moment.`,
        )
      const generations = submissions.map(({ size_class, request, events }) => {
        const pooled = pool.get(served, size_class)
        const generation = createGeneration(request, events)
        enqueue(pooled, generation)
        return generation
      })
      onIdle ??= hooks.onBusy()
      wake()
      return generations.map((generation) => ({ cancel: () => cancel(generation), progress: () => generation }))
    },
    holdBackground() {
      backgroundHolds++
      return () => {
        backgroundHolds--
        wake()
      }
    },
    async release(served) {
      for (const pooled of pool.all().filter((other) => other.served === served)) pool.close(pooled)
      notifyIfIdle()
      await pool.contextsSettled(served)
    },
    counts() {
      const sum = (of: (pooled: PooledRunner) => number) => pool.all().reduce((total, pooled) => total + of(pooled), 0)
      const slotsOf = ({ runner }: PooledRunner) => runner?.slotCount() ?? 0
      const tokens = sum((pooled) => slotsOf(pooled) * pooled.shape.tokens_per_slot)
      return {
        running: sum(({ runner }) => runner?.running() ?? 0),
        waiting: sum(waitingIn),
        runners: sum(({ runner }) => (runner ? 1 : 0)),
        runner_bytes: pool.bytes(),
        slots: sum(slotsOf),
        cache_usage: tokens === 0 ? 0 : sum(({ runner }) => runner?.tokensInUse() ?? 0) / tokens,
      }
    },
  }
}

function cancel(generation: Generation): void {
  // The runner frees the slot before its next step.
  generation.cancelled = true
}

function waitingIn({ runner, waiting }: PooledRunner): number {
  return waiting.length + (runner?.waiting.length ?? 0)
}
