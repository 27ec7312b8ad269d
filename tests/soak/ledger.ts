// What the service has acknowledged, kept outside of it: a soak that is taken up again knows what was promised before.
import { appendFileSync, existsSync, readFileSync } from 'node:fs'

export type Promised =
  | { kind: 'dataset'; id: string }
  | { kind: 'dataset_deleted'; id: string }
  /** Whose answer was lost may have been done or not. */
  | { kind: 'asked_to_delete'; id: string }
  | { kind: 'job'; id: string; idempotency_key: string }
  | { kind: 'job_ended'; id: string; status: string }
  | { kind: 'key'; id: string; key: string; idempotency_key: string }
  | { kind: 'key_revoked'; id: string; key: string }
  | { kind: 'deployment'; name: string; model: string }
  | { kind: 'answer'; request_id: string; completion_tokens: number }
  | { kind: 'killed'; what: string }

export interface Ledger {
  add(entry: Promised): void
  of<K extends Promised['kind']>(kind: K): Extract<Promised, { kind: K }>[]
}

/** Reads what the file holds and appends to it. */
export function openLedger(file: string): Ledger {
  const lines = existsSync(file) ? readFileSync(file, 'utf8').split('\n').filter(Boolean) : []
  const entries = lines.map((line) => JSON.parse(line) as Promised)
  return {
    add(entry) {
      entries.push(entry)
      appendFileSync(file, `${JSON.stringify(entry)}\n`)
    },
    of: <K extends Promised['kind']>(kind: K) =>
      entries.filter((entry): entry is Extract<Promised, { kind: K }> => entry.kind === kind),
  }
}
