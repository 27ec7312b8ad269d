// Runs local graders on a worker thread: `grading-thread.ts` at the other end. A grader that takes too long costs the
// thread, not the service.
import { once } from 'node:events'
import { Worker } from 'node:worker_threads'
import { createMutex } from '../../../../lib/mutex.ts'
import { threadTime } from '../../../../lib/thread-time.ts'
import type { GradingRequest } from './grading-thread.ts'
import type { Compilable, LocalGrader, Score } from './local.ts'
import { type FailureKind, GraderError, GraderFailure, type Values } from './template.ts'

/** Longest CPU time of one grader for one answer, and of one compilation. */
const limit_ms = 2000
/** By the clock it may be so many times as long: on a busy machine a thread waits for a core. */
const starvedFactor = 5
const check_ms = 50
const memory_mb = 256

export class GraderTooSlow extends GraderError {}

/** Work that nobody waits for any more: its evaluation has failed, was cancelled, or lets others go first. */
class Interrupted extends Error {}

/** Bounds what several graders do for one thing, such as all graders of an answer or of a request. */
export interface GradingBounds {
  /** Ends the grader that runs, and those that wait. */
  signal?: AbortSignal
  /** CPU time that is left for all of them. `grade` and `compile` take from it. */
  left_ms: number
}

export interface GradingThread {
  /** Throws GraderError, or GraderTooSlow. */
  grade(grader: LocalGrader, values: Values, bounds?: GradingBounds): Promise<Score>
  /** Throws GraderError for a pattern or a schema that cannot be used, or GraderTooSlow. */
  compile(compilable: Compilable, bounds: GradingBounds): Promise<void>
  close(): Promise<void>
}

type Reply = { score: unknown } | { error: string; expected: boolean; kind?: FailureKind }

export function createGradingThread(): GradingThread {
  let worker: Worker | undefined
  /** The kernel's id of the worker. */
  let thread_id = 0
  const serialize = createMutex()

  /** Its start does not count for the limit of the first request: on a busy machine it takes seconds. */
  async function start(): Promise<Worker> {
    const thread = new Worker(new URL('./grading-thread.ts', import.meta.url), {
      resourceLimits: { maxOldGenerationSizeMb: memory_mb },
    })
    // The first message says that it listens. Rejects if it cannot be started.
    const [id] = (await once(thread, 'message')) as [number]
    thread_id = id
    worker = thread
    // Also between two answers: an error that nobody listens to ends the process.
    thread.on('error', () => {
      if (worker === thread) worker = undefined
    })
    // A request has a timer, which keeps this process.
    thread.unref()
    return thread
  }

  async function run(request: GradingRequest, bounds?: GradingBounds): Promise<unknown> {
    const throwIfInterrupted = () => {
      if (bounds?.signal?.aborted) throw new Interrupted()
    }
    throwIfInterrupted()
    const thread = worker ?? (await start())
    throwIfInterrupted()
    const reply = Promise.withResolvers<Reply>()
    const [began, used] = [performance.now(), threadTime(thread_id)]
    const waited_ms = () => performance.now() - began
    /** CPU time; the time of the clock where the kernel does not tell, or the thread has ended. */
    const spent_ms = () => {
      const now = threadTime(thread_id)
      return now === undefined || used === undefined ? waited_ms() : now - used
    }
    const [allowed_ms, tooSlow] =
      bounds && bounds.left_ms < limit_ms
        ? [Math.max(0, bounds.left_ms), 'takes too long, together with what came before it']
        : [limit_ms, `takes longer than ${limit_ms / 1000} s`]
    const timer = setInterval(() => {
      if (spent_ms() >= allowed_ms || waited_ms() >= starvedFactor * allowed_ms)
        reply.reject(new GraderTooSlow(tooSlow))
    }, check_ms)
    const interrupt = () => reply.reject(new Interrupted())
    bounds?.signal?.addEventListener('abort', interrupt)
    let least_ms = 0
    const onError = (error: Error) =>
      reply.reject(new GraderTooSlow(`takes too much memory or fails: ${error.message}`))
    thread.once('message', reply.resolve).once('error', onError)
    try {
      thread.postMessage(request)
      const result = await reply.promise
      if ('score' in result) return result.score
      if (result.kind) throw new GraderFailure(result.kind, result.error)
      throw new GraderError(result.expected ? result.error : `It cannot grade this: ${result.error}`)
    } catch (error) {
      // It may have been ended by the clock, with CPU time left that others would have to wait for as long.
      if (error instanceof GraderTooSlow) least_ms = allowed_ms
      if (error instanceof GraderTooSlow || error instanceof Interrupted) {
        worker = undefined
        void thread.terminate()
      }
      throw error
    } finally {
      clearInterval(timer)
      if (bounds) bounds.left_ms -= Math.max(least_ms, spent_ms())
      bounds?.signal?.removeEventListener('abort', interrupt)
      thread.off('message', reply.resolve).off('error', onError)
    }
  }

  return {
    grade: (grader, values, bounds) => serialize(() => run({ grader, values }, bounds)) as Promise<Score>,
    compile: (compilable, bounds) => serialize(() => run({ compilable }, bounds)) as Promise<void>,
    async close() {
      await serialize(async () => void (await worker?.terminate()))
      worker = undefined
    },
  }
}
