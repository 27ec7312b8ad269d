// Mutexes for async work: FIFO, and round robin over accounts.

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

/**
 * Runs the work of many accounts one at a time. If `signal` aborts while the work waits, the call rejects with the
 * signal's reason and the work never starts.
 */
export type FairMutex = <T>(account: string, work: () => Promise<T>, signal?: AbortSignal) => Promise<T>

interface Options {
  /** Most waiting calls per account; one more rejects with `tooMany()`. */
  waiting_max?: number
  tooMany?: () => Error
}

/**
 * Mutex with round robin over accounts and FIFO within one, so that an account with much work delays others by one
 * piece of it at most. A rejection reaches only its own caller.
 */
export function createFairMutex({
  waiting_max = Number.POSITIVE_INFINITY,
  tooMany = () => new Error('too many wait'),
}: Options = {}): FairMutex {
  // The map's insertion order is the round robin: an account moves to the end when its work starts.
  const waiting = new Map<string, (() => Promise<void>)[]>()
  let running = false

  async function next(): Promise<void> {
    if (running) return
    const [first] = waiting
    if (!first) return
    const [account, works] = first
    const work = works.shift()!
    waiting.delete(account)
    if (works.length > 0) waiting.set(account, works)
    running = true
    await work()
    running = false
    void next()
  }

  return (account, work, signal) =>
    new Promise((resolve, reject) => {
      const begin = async () => {
        signal?.removeEventListener('abort', onAbort)
        await work().then(resolve, reject)
      }
      const onAbort = () => {
        const rest = waiting.get(account)?.filter((each) => each !== begin) ?? []
        if (rest.length > 0) waiting.set(account, rest)
        else waiting.delete(account)
        reject(signal!.reason)
      }
      if (signal?.aborted) return reject(signal.reason)
      const queued = waiting.get(account) ?? []
      if (queued.length >= waiting_max) return reject(tooMany())
      signal?.addEventListener('abort', onAbort, { once: true })
      waiting.set(account, [...queued, begin])
      void next()
    })
}
