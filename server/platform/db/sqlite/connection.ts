import { open } from 'node:fs/promises'
import SQLite from 'better-sqlite3'
import type { QueryResult } from 'kysely'

/** How long a statement waits for the write lock of another process. */
export const busy_timeout_ms = 10_000

/** Opens a database file. SQLite's own error for one that cannot be opened does not name it. */
export function openSqlite(file: string, options?: SQLite.Options): SQLite.Database {
  try {
    return new SQLite(file, options)
  } catch (error) {
    const { code, message } = error as Error & { code?: string }
    throw code === 'SQLITE_CANTOPEN' ? new SQLite.SqliteError(`${message}: ${file}`, code) : error
  }
}

/**
 * Opens a connection that writes. Its commits survive a power cut; with `syncs: false` only once `syncWal` has run
 * after them.
 */
export function openWriter(file: string, timeout_ms: number, { syncs = true } = {}): SQLite.Database {
  const sqlite = openSqlite(file, { timeout: timeout_ms })
  try {
    sqlite.pragma('journal_mode = WAL')
    sqlite.pragma(`synchronous = ${syncs ? 'FULL' : 'NORMAL'}`)
    sqlite.pragma('foreign_keys = ON')
    // What is deleted is overwritten.
    sqlite.pragma('secure_delete = ON')
    addNoDeadline(sqlite)
    return sqlite
  } catch (error) {
    sqlite.close()
    throw error
  }
}

/** Syncs the write-ahead log to the disk. Rejects with a code of SQLite's. */
export async function syncWal(file: string): Promise<void> {
  try {
    // Opened each time: the log is another file after the database was closed.
    const wal = await open(`${file}-wal`)
    try {
      await wal.datasync()
    } finally {
      await wal.close()
    }
  } catch (error) {
    throw new SQLite.SqliteError(
      `the write-ahead log could not be synced: ${(error as Error).message}`,
      'SQLITE_IOERR_FSYNC',
    )
  }
}

/** Opens a connection that only reads. It never waits for a lock: SQLITE_BUSY is thrown at once. */
export function openReader(file: string): SQLite.Database {
  const sqlite = openSqlite(file, { timeout: 0, fileMustExist: true })
  try {
    sqlite.pragma('query_only = ON')
    addNoDeadline(sqlite)
    return sqlite
  } catch (error) {
    sqlite.close()
    throw error
  }
}

/** The condition of lists (dialect.ts). Outside of the reader thread, as in a transaction, they have no deadline. */
const addNoDeadline = (sqlite: SQLite.Database) => sqlite.function('before_deadline', { deterministic: true }, () => 1)

/** `only_read`: the statement cannot have changed anything, whatever its text begins with. */
export type StatementResult = QueryResult<unknown> & { only_read?: boolean }

/** Runs one statement and returns a Kysely result. */
export function runStatement(sqlite: SQLite.Database, sql: string, parameters: readonly unknown[]): StatementResult {
  const statement = sqlite.prepare(sql)
  if (statement.reader) return { rows: statement.all(parameters), only_read: statement.readonly }
  const { changes, lastInsertRowid } = statement.run(parameters)
  return { rows: [], numAffectedRows: BigInt(changes), insertId: BigInt(lastInsertRowid) }
}
