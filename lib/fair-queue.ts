// The queue of work that waits within a process: accounts in turn, FIFO within one.

/**
 * Runs the work of an account when it is its turn. If `signal` aborts while the work waits, the call rejects with the
 * signal's reason and the work never starts. A rejection reaches only its own caller.
 */
export type FairQueue = <T>(account: string, work: () => Promise<T>, signal?: AbortSignal) => Promise<T>

interface Options {
  /** Work that runs at once, of all accounts and of one. */
  at_once?: number
  at_once_per_account?: number
  /** Most waiting calls per account; one more rejects with `tooMany()`. */
  waiting_max?: number
  tooMany?: () => Error
}

/**
 * Round robin over accounts: one with much work delays others by one piece of it at most. By default one piece runs at
 * a time.
 */
export function createFairQueue({
  at_once = 1,
  at_once_per_account = at_once,
  waiting_max = Number.POSITIVE_INFINITY,
  tooMany = () => new Error('too many wait'),
}: Options = {}): FairQueue {
  // The map's insertion order is the round robin: an account moves to the end when its work starts.
  const waiting = new Map<string, (() => Promise<void>)[]>()
  const running = new Map<string, number>()
  let total = 0

  function count(account: string, by: 1 | -1): void {
    total += by
    const left = (running.get(account) ?? 0) + by
    if (left === 0) running.delete(account)
    else running.set(account, left)
  }

  function next(): void {
    while (total < at_once) {
      const account = [...waiting.keys()].find((candidate) => (running.get(candidate) ?? 0) < at_once_per_account)
      if (account === undefined) return
      const works = waiting.get(account)!
      const work = works.shift()!
      waiting.delete(account)
      if (works.length > 0) waiting.set(account, works)
      count(account, 1)
      void work().then(() => {
        count(account, -1)
        next()
      })
    }
  }

  return (account, work, signal) =>
    new Promise((resolve, reject) => {
      const begin = async () => {
        signal?.removeEventListener('abort', onAbort)
        await work().then(resolve, reject)
      }
      const onAbort = () => {
        const rest = waiting.get(account)?.filter((entry) => entry !== begin) ?? []
        if (rest.length > 0) waiting.set(account, rest)
        else waiting.delete(account)
        reject(signal!.reason)
      }
      if (signal?.aborted) return reject(signal.reason)
      const works = waiting.get(account) ?? []
      if (works.length >= waiting_max) return reject(tooMany())
      signal?.addEventListener('abort', onAbort, { once: true })
      works.push(begin)
      waiting.set(account, works)
      next()
    })
}
