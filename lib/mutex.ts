// Mutexes for async work: first in first out, and round robin over accounts.

/** Runs `work` once every call before it has ended. */
export type Mutex = <T>(work: () => T | Promise<T>) => Promise<T>

/** FIFO mutex. A rejection reaches only its own caller. */
export function createMutex(): Mutex {
  let last: Promise<unknown> = Promise.resolve()
  return (work) => {
    const mine = last.then(work)
    last = mine.catch(() => {})
    return mine
  }
}

/**
 * Runs the work of many accounts one at a time. Work whose signal aborts while it waits rejects with the signal's
 * reason and never begins.
 */
export type FairMutex = <T>(account: string, work: () => Promise<T>, signal?: AbortSignal) => Promise<T>

interface Options {
  /** How many of one account may wait; one more rejects with `tooMany`. */
  waiting_max?: number
  tooMany?: () => Error
}

/**
 * Round robin over the accounts that wait, so that one with much work delays another by one piece of it at most. An
 * account's own work runs in the order in which it was asked for. A rejection reaches only its own caller.
 */
export function createFairMutex({
  waiting_max = Number.POSITIVE_INFINITY,
  tooMany = () => new Error('too many wait'),
}: Options = {}): FairMutex {
  // Insertion order is the round robin: an account moves to the end when its work begins.
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
        signal?.removeEventListener('abort', leave)
        await work().then(resolve, reject)
      }
      const leave = () => {
        const rest = waiting.get(account)?.filter((each) => each !== begin) ?? []
        if (rest.length > 0) waiting.set(account, rest)
        else waiting.delete(account)
        reject(signal!.reason)
      }
      if (signal?.aborted) return reject(signal.reason)
      const before = waiting.get(account) ?? []
      if (before.length >= waiting_max) return reject(tooMany())
      signal?.addEventListener('abort', leave, { once: true })
      waiting.set(account, [...before, begin])
      void next()
    })
}
