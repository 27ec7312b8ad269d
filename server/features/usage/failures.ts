// Requests that failed before an answer began, which leave no usage: counted in memory, and added to the figures with
// the next fold. A kill loses about the last second of them.
import { createSpanSums, type FailureKind, type SpanFigures } from './figures.ts'

export interface Failures {
  count(account_id: string, model: string, kind: FailureKind, at: number): void
  /**
   * Stores what was counted since the last call. If `store` rejects, the next call tries again, and this one rejects.
   */
  flush(store: (figures: SpanFigures[]) => Promise<void>): Promise<void>
}

/** Counters in memory. While the database cannot be written, failures beyond these are dropped. */
const counters_max = 10_000

export function createFailures(): Failures {
  let sums = createSpanSums()
  let unstored: SpanFigures[] = []
  return {
    count(account_id, model, kind, at) {
      if (sums.size + unstored.length < counters_max) sums.addFailure(account_id, model, kind, at)
    },
    async flush(store) {
      unstored.push(...sums.all())
      sums = createSpanSums()
      if (unstored.length === 0) return
      await store(unstored)
      unstored = []
    },
  }
}

/** The kind of a failure by its status. */
export const failureKind = (status: number): FailureKind =>
  status === 429 || status === 503 ? 'refused' : status >= 500 ? 'failed' : 'invalid'
