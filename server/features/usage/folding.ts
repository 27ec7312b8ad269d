import { once } from 'node:events'
import { Worker } from 'node:worker_threads'
import type { FoldResult, FoldSettings } from './fold-thread.ts'

interface Folding {
  /** Folds one journal file into the database and removes it. Call it for one file at a time. */
  fold(file: string): Promise<void>
  close(): Promise<void>
}

/** Runs the fold thread, started with the first file. */
export function createFolding(settings: FoldSettings): Folding {
  let thread: Worker | undefined
  function running(): Worker {
    if (thread) return thread
    const started = new Worker(new URL('./fold-thread.ts', import.meta.url), { workerData: settings })
    // `fold` reports the failure; the next file starts a new thread.
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
      const settled = new AbortController()
      const ended = once(worker, 'exit', { signal: settled.signal }).then(() => {
        throw new Error('the usage fold thread ended')
      })
      const answer = once(worker, 'message', { signal: settled.signal }).then(([message]) => message as FoldResult)
      // Both reject when the thread fails, but only one is awaited.
      for (const promise of [ended, answer]) promise.catch(() => {})
      worker.postMessage(file)
      try {
        const { error } = await Promise.race([answer, ended])
        if (error) throw Object.assign(new Error(error.message), { code: error.code })
      } finally {
        settled.abort()
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
