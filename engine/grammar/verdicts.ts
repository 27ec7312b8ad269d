import type { ApiError } from '../../contract/errors.ts'

/** Result of a grammar's trial: served by the shared worker, served by its own worker, or rejected. */
export type Verdict = 'cheap' | 'costly' | ApiError

export interface Verdicts {
  get(key: string): Verdict | null
  set(key: string, verdict: Verdict): Verdict
  /**
   * A grammar blocked its worker while in use. The first time it gets its own worker; the second time it is
   * rejected with `error` for a while.
   */
  addStrike(key: string, error: ApiError): void
}

/**
 * LRU cache of verdicts. Rejections expire after `rejection_ms`: they depend on timing, and the machine may have been
 * busy.
 */
export function createVerdicts({ grammars, rejection_ms }: { grammars: number; rejection_ms: number }): Verdicts {
  const entries = new Map<string, { verdict: Verdict; at_ms: number; strikes: number }>()

  const set = (key: string, verdict: Verdict, strikes: number): Verdict => {
    entries.delete(key)
    entries.set(key, { verdict, at_ms: Date.now(), strikes })
    if (entries.size > grammars) entries.delete(entries.keys().next().value!)
    return verdict
  }

  return {
    get(key) {
      const verdict = entries.get(key)
      if (!verdict) return null
      entries.delete(key)
      if (typeof verdict.verdict === 'object' && Date.now() - verdict.at_ms > rejection_ms) return null
      entries.set(key, verdict)
      return verdict.verdict
    },
    set: (key, verdict) => set(key, verdict, entries.get(key)?.strikes ?? 0),
    addStrike(key, error) {
      const strikes = (entries.get(key)?.strikes ?? 0) + 1
      set(key, strikes > 1 ? error : 'costly', strikes)
    },
  }
}
