// A semaphore of accounts: bounds the work that runs at once, in all and of one account.

/**
 * Runs work when it has a permit. An account at its bound waits behind the others. Rejects with the signal's reason if
 * it aborts before; the work then never starts.
 */
export type FairSemaphore = <T>(account_id: string, work: () => Promise<T>, signal: AbortSignal) => Promise<T>

interface Waiting {
  account_id: string
  begin(): void
}

export function createFairSemaphore({ inAll, ofAccount }: { inAll: number; ofAccount: number }): FairSemaphore {
  const running = new Map<string, number>()
  const waiting: Waiting[] = []
  let total = 0

  const count = (account_id: string, by: 1 | -1) => {
    total += by
    const now = (running.get(account_id) ?? 0) + by
    if (now === 0) running.delete(account_id)
    else running.set(account_id, now)
  }

  function next(): void {
    while (total < inAll) {
      const index = waiting.findIndex(({ account_id }) => (running.get(account_id) ?? 0) < ofAccount)
      if (index < 0) return
      const [one] = waiting.splice(index, 1)
      count(one!.account_id, 1)
      one!.begin()
    }
  }

  return async (account_id, work, signal) => {
    signal.throwIfAborted()
    const { promise, resolve, reject } = Promise.withResolvers<void>()
    const mine = { account_id, begin: resolve }
    const onAbort = () => {
      const index = waiting.indexOf(mine)
      if (index < 0) return
      waiting.splice(index, 1)
      reject(signal.reason)
    }
    signal.addEventListener('abort', onAbort, { once: true })
    waiting.push(mine)
    next()
    try {
      await promise
    } finally {
      signal.removeEventListener('abort', onAbort)
    }
    try {
      return await work()
    } finally {
      count(account_id, -1)
      next()
    }
  }
}
