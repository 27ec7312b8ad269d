/**
 * Cache of lookups. Call `clear` after each change in this process; changes by other processes show after `ttl_ms` at
 * most. Lookups that find nothing are not cached.
 */
interface TtlCache<T> {
  /**
   * Returns the cached value at once, else a promise of what `lookUp` finds. A value that was looked up for another
   * `version` is outdated.
   */
  getOrLoad(key: string, lookUp: () => Promise<T | undefined>, version?: string): Promise<T | undefined> | T
  /** Drops all entries, and keeps lookups in flight from adding theirs. */
  clear(): void
}

const entries_max = 10_000

export function createTtlCache<T extends object>(
  ttl_ms: number,
  now: () => number = performance.now.bind(performance),
): TtlCache<T> {
  const entries = new Map<string, { value: T; until: number; version: string | undefined }>()
  let changes = 0
  return {
    getOrLoad(key, lookUp, version) {
      const cached = entries.get(key)
      if (cached && cached.version === version && cached.until > now()) return cached.value
      const changesBefore = changes
      // The TTL starts before the lookup: its result may be that old.
      const until = now() + ttl_ms
      return lookUp().then((value) => {
        if (value === undefined || changes !== changesBefore) return value
        if (entries.size >= entries_max) entries.clear()
        entries.set(key, { value, until, version })
        return value
      })
    },
    clear() {
      changes++
      entries.clear()
    },
  }
}
