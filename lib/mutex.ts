// A mutex for async work. Work of accounts waits in a fair queue (fair-queue.ts).

/** Runs `work` after all earlier calls have settled. */
export type Mutex = <T>(work: () => T | Promise<T>) => Promise<T>

/** FIFO mutex. A rejection reaches only its own caller. */
export function createMutex(): Mutex {
  let last: Promise<unknown> = Promise.resolve()
  return (work) => {
    const result = last.then(work)
    last = result.catch(() => {})
    return result
  }
}
