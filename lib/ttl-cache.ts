/**
 * What a look-up found, kept for a short time: exact where `clear` is called after each change, and bounded by `ttl_ms`
 * where another process makes the change. What was not found is not kept.
 */
export interface ShortCache<T> {
  /** What is known of the key now; else what `lookUp` finds. */
  find(key: string, lookUp: () => Promise<T | undefined>): Promise<T | undefined> | T
  /** Forgets everything, and what look-ups that are under way will find. */
  clear(): void
}

const entries_max = 10_000

export function createShortCache<T extends object>(
  ttl_ms: number,
  now: () => number = performance.now.bind(performance),
): ShortCache<T> {
  const entries = new Map<string, { value: T; until: number }>()
  let changes = 0
  return {
    find(key, lookUp) {
      const known = entries.get(key)
      if (known && known.until > now()) return known.value
      const seen = changes
      // The time runs from the moment of asking: the answer may be as old as that.
      const until = now() + ttl_ms
      return lookUp().then((value) => {
        if (value === undefined || changes !== seen) return value
        if (entries.size >= entries_max) entries.clear()
        entries.set(key, { value, until })
        return value
      })
    },
    clear() {
      changes++
      entries.clear()
    },
  }
}
