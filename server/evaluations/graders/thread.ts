// Runs local graders on a worker thread: `grading-thread.ts` at the other end. A grader that takes too long costs the
// thread, not the service.
import { Worker } from 'node:worker_threads'
import type { LocalGrader, Score } from './local.ts'
import { GraderError, type Values } from './template.ts'

/** Longest time of one grader for one answer. */
const limit_ms = 2000
const memory_mb = 256

export class GraderTooSlow extends GraderError {}

export interface GradingThread {
  /** Throws GraderError, or GraderTooSlow. */
  grade(grader: LocalGrader, values: Values): Promise<Score>
  close(): Promise<void>
}

type Reply = { score: Score } | { error: string; expected: boolean }

export function createGradingThread(): GradingThread {
  let worker: Worker | undefined
  let last: Promise<unknown> = Promise.resolve()

  function start(): Worker {
    const thread = new Worker(new URL('./grading-thread.ts', import.meta.url), {
      resourceLimits: { maxOldGenerationSizeMb: memory_mb },
    })
    // Also between two answers: an error that nobody listens to ends the process.
    thread.on('error', () => {
      if (worker === thread) worker = undefined
    })
    return thread
  }

  async function run(grader: LocalGrader, values: Values): Promise<Score> {
    worker ??= start()
    const thread = worker
    const reply = Promise.withResolvers<Reply>()
    const timer = setTimeout(() => reply.reject(new GraderTooSlow(`takes longer than ${limit_ms / 1000} s`)), limit_ms)
    const onError = (error: Error) =>
      reply.reject(new GraderTooSlow(`takes too much memory or fails: ${error.message}`))
    thread.once('message', reply.resolve).once('error', onError)
    try {
      thread.postMessage({ grader, values })
      const found = await reply.promise
      if ('score' in found) return found.score
      throw new GraderError(found.expected ? found.error : `It cannot grade this: ${found.error}`)
    } catch (error) {
      if (error instanceof GraderTooSlow) {
        worker = undefined
        void thread.terminate()
      }
      throw error
    } finally {
      clearTimeout(timer)
      thread.off('message', reply.resolve).off('error', onError)
    }
  }

  return {
    grade(grader, values) {
      const result = last.then(() => run(grader, values))
      last = result.catch(() => {})
      return result
    },
    async close() {
      await last
      await worker?.terminate()
    },
  }
}
