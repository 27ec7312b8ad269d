import type { ApiError } from '../../contract/errors.ts'

/** What the trial of a grammar showed: served with others, served by a worker of its own, or not served. */
export type Verdict = 'cheap' | 'costly' | ApiError

export type Verdicts = {
  get(key: string): Verdict | null
  set(key: string, verdict: Verdict): Verdict
  /**
   * A grammar held up its worker while it was served: it gets a worker of its own, and at the second time none for a
   * while.
   */
  blame(key: string, refusal: ApiError): void
}

/**
 * The verdicts used last. A refusal ends after a while: it was found by the clock, and the machine may have been busy.
 */
export function createVerdicts({ grammars, refusal_ms }: { grammars: number; refusal_ms: number }): Verdicts {
  const kept = new Map<string, { verdict: Verdict; at: number; blamed: number }>()

  const set = (key: string, verdict: Verdict, blamed: number): Verdict => {
    kept.delete(key)
    kept.set(key, { verdict, at: Date.now(), blamed })
    if (kept.size > grammars) kept.delete(kept.keys().next().value!)
    return verdict
  }

  return {
    get(key) {
      const found = kept.get(key)
      if (!found) return null
      kept.delete(key)
      if (typeof found.verdict === 'object' && Date.now() - found.at > refusal_ms) return null
      kept.set(key, found)
      return found.verdict
    },
    set: (key, verdict) => set(key, verdict, kept.get(key)?.blamed ?? 0),
    blame(key, refusal) {
      const blamed = (kept.get(key)?.blamed ?? 0) + 1
      set(key, blamed > 1 ? refusal : 'costly', blamed)
    },
  }
}
