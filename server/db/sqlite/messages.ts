import type { QueryResult } from 'kysely'

export interface WriterSettings {
  file: string
  timeout_ms: number
}

/** What the main thread asks of the writer. Each is answered once, in the order in which they were sent. */
export type Request =
  /** `inside` says whether a transaction is open: where SQLite has ended it on its own, what follows must not be written without it. */
  | { kind: 'run'; sql: string; parameters: readonly unknown[]; inside: boolean }
  /** Ends whatever transaction is open. Always succeeds. */
  | { kind: 'rollback' }
  /** Ends the thread. */
  | { kind: 'close' }

export type Reply = { result: QueryResult<unknown> } | { error: { message: string; code?: string } }
