import { mkdirSync } from 'node:fs'
import path from 'node:path'
import SQLite from 'better-sqlite3'
import { CompiledQuery, type Driver, Kysely, SqliteDialect, type Transaction } from 'kysely'
import { migrate } from './migrate.ts'
import type { Schema } from './schema.ts'

export type Db = Kysely<Schema>
/** A transaction: what must be true together is written with the same one. */
export type Trx = Transaction<Schema>

// A transaction that reads first and writes later fails at once when another process (the command line) wrote in between; one that
// takes the write lock at its beginning waits for its turn.
class ImmediateSqliteDialect extends SqliteDialect {
  override createDriver(): Driver {
    const driver = super.createDriver()
    driver.beginTransaction = async (connection) => {
      await connection.executeQuery(CompiledQuery.raw('begin immediate'))
    }
    return driver
  }
}

/** Opens the database in the data folder, brings its tables up to date and returns the one query layer on it. */
export async function openDatabase(dataDir: string): Promise<Db> {
  mkdirSync(dataDir, { recursive: true, mode: 0o700 })
  const db = new Kysely<Schema>({
    dialect: new ImmediateSqliteDialect({
      database: async () => {
        const sqlite = new SQLite(path.join(dataDir, 'tunery.db'), { timeout: 10_000 })
        sqlite.pragma('journal_mode = WAL')
        // What was answered with 'created' must be there after a power cut.
        sqlite.pragma('synchronous = FULL')
        sqlite.pragma('foreign_keys = ON')
        return sqlite
      },
    }),
  })
  await migrate(db)
  return db
}

/**
 * Holds the data folder for this process: a second server on the same folder would take over the first one's running jobs. The lock is
 * the operating system's, on a file of its own, so it is gone when the process is, however it ended.
 */
export function lockDataDir(dataDir: string): { release(): void } | undefined {
  mkdirSync(dataDir, { recursive: true, mode: 0o700 })
  const lock = new SQLite(path.join(dataDir, 'server.lock'), { timeout: 0 })
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
