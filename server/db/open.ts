import { mkdirSync } from 'node:fs'
import path from 'node:path'
import SQLite from 'better-sqlite3'
import { CompiledQuery, type Driver, Kysely, SqliteDialect, type Transaction } from 'kysely'
import { migrate } from './migrate.ts'
import type { Schema } from './schema.ts'
import { busy_timeout_ms, openWriter } from './sqlite/connection.ts'
import { ThreadedSqliteDialect } from './sqlite/dialect.ts'

export type Db = Kysely<Schema>
/** A transaction: what must be true together is written with the same one. */
export type Trx = Transaction<Schema>

// A transaction that reads first and writes later fails at once when another process (the command line) wrote in
// between; one that takes the write lock at its beginning waits for its turn.
class ImmediateSqliteDialect extends SqliteDialect {
  override createDriver(): Driver {
    const driver = super.createDriver()
    driver.beginTransaction = async (connection) => {
      await connection.executeQuery(CompiledQuery.raw('begin immediate'))
    }
    return driver
  }
}

export const fileOf = (dataDir: string) => path.join(dataDir, 'tunery.db')

/** Opens the database in the data folder, in this thread, and brings its tables up to date. */
export async function openDatabase(dataDir: string): Promise<Db> {
  mkdirSync(dataDir, { recursive: true, mode: 0o700 })
  return migrated(new ImmediateSqliteDialect({ database: async () => openWriter(fileOf(dataDir), busy_timeout_ms) }))
}

/** The same for a process that must not be held up: whatever writes does so in a thread of its own. */
export async function openThreadedDatabase(dataDir: string, timeout_ms = busy_timeout_ms): Promise<Db> {
  mkdirSync(dataDir, { recursive: true, mode: 0o700 })
  return migrated(new ThreadedSqliteDialect({ file: fileOf(dataDir), timeout_ms }))
}

async function migrated(dialect: SqliteDialect): Promise<Db> {
  const db = new Kysely<Schema>({ dialect })
  try {
    await migrate(db)
    return db
  } catch (error) {
    await db.destroy()
    throw error
  }
}

/**
 * Holds the data folder for this process: a second server on the same folder would take over the first one's running
 * jobs. The lock is the operating system's, on a file of its own, so it is gone when the process is, however it ended.
 * Undefined where another holds it.
 */
export function lockDataDir(dataDir: string, name = 'server.lock'): { release(): void } | undefined {
  mkdirSync(dataDir, { recursive: true, mode: 0o700 })
  const lock = new SQLite(path.join(dataDir, name), { timeout: 0 })
  try {
    lock.pragma('locking_mode = EXCLUSIVE')
    lock.exec('begin exclusive')
    return { release: () => lock.close() }
  } catch (error) {
    lock.close()
    if ((error as { code?: string }).code === 'SQLITE_BUSY') return undefined
    throw error
  }
}
