// Ledger of what the service has acknowledged, in a file, so that a resumed soak run knows it too.
import { appendFileSync, existsSync, readFileSync } from 'node:fs'

type LedgerEntry =
  | { kind: 'dataset'; id: string }
  | { kind: 'dataset_deleted'; id: string }
  /** If the answer was lost, it may have been deleted or not. */
  | { kind: 'asked_to_delete'; id: string }
  | { kind: 'job'; id: string; idempotency_key: string }
  | { kind: 'job_ended'; id: string; status: string }
  | { kind: 'key'; id: string; key: string; idempotency_key: string }
  | { kind: 'key_revoked'; id: string; key: string }
  | { kind: 'deployment'; name: string; model: string }
  | { kind: 'answer'; request_id: string; completion_tokens: number }
  | { kind: 'killed'; what: string }

export interface Ledger {
  add(entry: LedgerEntry): void
  of<K extends LedgerEntry['kind']>(kind: K): Extract<LedgerEntry, { kind: K }>[]
}

/** Reads the file's entries and appends new ones. */
export function openLedger(file: string): Ledger {
  const lines = existsSync(file) ? readFileSync(file, 'utf8').split('\n').filter(Boolean) : []
  const entries = lines.map((line) => JSON.parse(line) as LedgerEntry)
  return {
    add(entry) {
      entries.push(entry)
      appendFileSync(file, `${JSON.stringify(entry)}\n`)
    },
    of: <K extends LedgerEntry['kind']>(kind: K) =>
      entries.filter((entry): entry is Extract<LedgerEntry, { kind: K }> => entry.kind === kind),
  }
}
