import { mkdirSync } from 'node:fs'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { CompiledQuery, type Dialect, type Driver, Kysely, SqliteDialect, type Transaction } from 'kysely'
import { databaseAway } from './dialect.ts'
import { migrate } from './migrate.ts'
import type { Schema } from './schema.ts'
import { busy_timeout_ms, openSqlite, openWriter } from './sqlite/connection.ts'
import { ThreadedSqliteDialect } from './sqlite/dialect.ts'

export type Db = Kysely<Schema>
/** Pass the same transaction to all writes that must be atomic. */
export type Trx = Transaction<Schema>
/** For reads, and for writes that need not be atomic with others: the database itself or a transaction. */
export type Queryable = Db | Trx

// Begins transactions with `begin immediate`. A deferred transaction that reads first fails at once (SQLITE_BUSY) if
// another process, such as the command line, writes before its own first write; an immediate one waits for the lock.
class ImmediateSqliteDialect extends SqliteDialect {
  override createDriver(): Driver {
    const driver = super.createDriver()
    driver.beginTransaction = async (connection) => {
      await connection.executeQuery(CompiledQuery.raw('begin immediate'))
    }
    return driver
  }
}

export const databaseFile = (dataDir: string) => path.join(dataDir, 'tunery.db')

/** Looks at a database before anything is written, and throws if it is not the one that it should be. */
export type Admit = (db: Db) => Promise<void>

/** Opens the database, Postgres or that of the data folder, in this thread, and applies pending migrations. */
export async function openDatabase(dataDir: string, database_url?: string, admit?: Admit): Promise<Db> {
  if (database_url) return await openPostgres(database_url, admit)
  mkdirSync(dataDir, { recursive: true, mode: 0o700 })
  return openAndMigrate(
    new ImmediateSqliteDialect({ database: async () => openWriter(databaseFile(dataDir), busy_timeout_ms) }),
    admit,
  )
}

interface ThreadedOptions {
  database_url?: string | undefined
  timeout_ms?: number
  /** How long a Postgres that is away is waited for. Default 0. */
  wait_ms?: number
  /** Called once if it is. */
  onAway?: (error: Error) => void
  admit?: Admit
}

/** The same for a process that must not block: all writes to SQLite run in their own thread. */
export async function openThreadedDatabase(
  dataDir: string,
  { database_url, timeout_ms = busy_timeout_ms, wait_ms = 0, onAway, admit }: ThreadedOptions = {},
): Promise<Db> {
  if (database_url) return await openWhenThere(database_url, wait_ms, onAway, admit)
  mkdirSync(dataDir, { recursive: true, mode: 0o700 })
  return openAndMigrate(new ThreadedSqliteDialect({ file: databaseFile(dataDir), timeout_ms }), admit)
}

/** Opens a database as it is, for `./tunery migrate-data`. */
export async function openUnmigrated(dataDir: string, database_url?: string): Promise<Db> {
  if (database_url) return new Kysely<Schema>({ dialect: await postgresDialect(database_url) })
  mkdirSync(dataDir, { recursive: true, mode: 0o700 })
  const database = async () => openWriter(databaseFile(dataDir), busy_timeout_ms)
  return new Kysely<Schema>({ dialect: new ImmediateSqliteDialect({ database }) })
}

/** Opens a database so that nothing can be written. */
export async function openReadOnly(dataDir: string, database_url?: string): Promise<Db> {
  if (!database_url) {
    const database = openSqlite(databaseFile(dataDir), { readonly: true, fileMustExist: true })
    return new Kysely<Schema>({ dialect: new SqliteDialect({ database }) })
  }
  const url = new URL(database_url)
  const options = encodeURIComponent(`${url.searchParams.get('options') ?? ''} -c default_transaction_read_only=on`)
  url.searchParams.delete('options')
  // By hand: searchParams would write a space as a plus, which Postgres' driver does not read as one.
  url.search += `${url.search ? '&' : '?'}options=${options}`
  return new Kysely<Schema>({ dialect: await postgresDialect(url.href) })
}

/** Loaded where it is used: the driver would slow every start on SQLite. */
async function postgresDialect(url: string): Promise<Dialect> {
  const { InTurnPostgresDialect } = await import('./postgres/dialect.ts')
  return new InTurnPostgresDialect(url)
}

const retry_ms = 500

/** Opens a Postgres database and applies pending migrations. */
const openPostgres = async (url: string, admit?: Admit): Promise<Db> =>
  openAndMigrate(await postgresDialect(url), admit)

async function openWhenThere(
  url: string,
  wait_ms: number,
  onAway?: (error: Error) => void,
  admit?: Admit,
): Promise<Db> {
  const deadline = performance.now() + wait_ms
  for (let tries = 0; ; tries++)
    try {
      return await openPostgres(url, admit)
    } catch (error) {
      if ((error as { code?: string }).code !== databaseAway || performance.now() >= deadline) throw error
      if (tries === 0) onAway?.(error as Error)
      await sleep(retry_ms)
    }
}

async function openAndMigrate(dialect: Dialect, admit?: Admit): Promise<Db> {
  const db = new Kysely<Schema>({ dialect })
  try {
    await admit?.(db)
    await migrate(db)
    return db
  } catch (error) {
    await db.destroy()
    throw error
  }
}

/**
 * Locks the data folder for this process: a second server would take over the running jobs of the first. It is an
 * operating system lock on its own file, so it ends with the process. Undefined if another process holds it.
 */
export function lockDataDir(dataDir: string, name = 'server.lock'): { release(): void } | undefined {
  mkdirSync(dataDir, { recursive: true, mode: 0o700 })
  const lock = openSqlite(path.join(dataDir, name), { timeout: 0 })
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
