import { once } from 'node:events'
import { Worker } from 'node:worker_threads'
import type { Folded, FoldSettings } from './fold-thread.ts'

export interface Folding {
  /** Brings a file of the journal into the database and removes it; one at a time. */
  fold(file: string): Promise<void>
  close(): Promise<void>
}

/** The thread that folds; it begins with the first file. */
export function createFolding(settings: FoldSettings): Folding {
  let thread: Worker | undefined
  function running(): Worker {
    if (thread) return thread
    const started = new Worker(new URL('./fold-thread.ts', import.meta.url), { workerData: settings })
    // One that ended is replaced with the next file; who waits for it hears so below.
    started.on('error', () => {})
    started.once('exit', () => {
      if (thread === started) thread = undefined
    })
    thread = started
    return started
  }
  return {
    async fold(file) {
      const worker = running()
      const over = new AbortController()
      const ended = once(worker, 'exit', { signal: over.signal }).then(() => {
        throw new Error('the thread that folds usage ended')
      })
      const answer = once(worker, 'message', { signal: over.signal }).then(([message]) => message as Folded)
      // Either is told of what made the thread fail, and only one is waited for at the end.
      for (const each of [ended, answer]) each.catch(() => {})
      worker.postMessage(file)
      try {
        const { error } = await Promise.race([answer, ended])
        if (error) throw Object.assign(new Error(error.message), { code: error.code })
      } finally {
        over.abort()
      }
    },
    async close() {
      if (!thread) return
      const exit = once(thread, 'exit')
      thread.postMessage(null)
      await exit
    },
  }
}
