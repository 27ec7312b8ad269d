// Requests that failed before an answer began, which leave no usage: counted in memory by minute, and added to the
// database with the next fold. A kill loses about the last second of them.
import type { NewRow } from '../db/schema.ts'

export const minute_ms = 60_000

export interface Failures {
  count(account_id: string, model: string, kind: FailureKind, at: number): void
  /** Returns what was counted since the last call, and forgets it. */
  take(): NewRow<'usage_failures'>[]
  /** Adds rows that `take` had returned, after a failure to store them. */
  putBack(rows: NewRow<'usage_failures'>[]): void
}

export type FailureKind = 'failed' | 'refused' | 'invalid'

/** Counters in memory. While the database cannot be written, further ones are dropped. */
const counters_max = 10_000

export function createFailures(): Failures {
  const counters = new Map<string, NewRow<'usage_failures'>>()
  const add = (row: NewRow<'usage_failures'>) => {
    const key = JSON.stringify([row.account_id, row.model, row.minute, row.kind])
    const known = counters.get(key)
    if (known) known.requests += row.requests
    else if (counters.size < counters_max) counters.set(key, { ...row })
  }
  return {
    count: (account_id, model, kind, at) =>
      add({ account_id, model, minute: at - (at % minute_ms), kind, requests: 1 }),
    take() {
      const rows = [...counters.values()]
      counters.clear()
      return rows
    },
    putBack: (rows) => rows.forEach(add),
  }
}

/** The kind of a failure by its status. */
export const failureKind = (status: number): FailureKind =>
  status === 429 || status === 503 ? 'refused' : status >= 500 ? 'failed' : 'invalid'
