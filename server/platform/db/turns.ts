export interface Turns {
  /** Waits for its turn, in the order of asking. Resolves with the function that ends it. */
  take(): Promise<() => void>
  /** Whether somebody waits for the turn of another. */
  isAwaited(): boolean
}

/** A lock that is taken in the order of asking. */
export function createTurns(): Turns {
  let last = Promise.resolve()
  let waiting = 0
  return {
    async take() {
      const previous = last
      const { promise, resolve } = Promise.withResolvers<void>()
      last = promise
      waiting++
      await previous
      waiting--
      return resolve
    },
    isAwaited: () => waiting > 0,
  }
}

/**
 * Group commit: one sync for all transactions that were committed before it began. The returned function resolves once
 * such a sync has ended, and rejects if it has failed.
 */
export function groupSyncs(sync: () => Promise<void>): () => Promise<void> {
  let current: Promise<void> = Promise.resolve()
  let next: Promise<void> | undefined
  return () => {
    next ??= current
      .catch(() => {})
      .then(() => {
        next = undefined
        current = sync()
        return current
      })
    return next
  }
}
