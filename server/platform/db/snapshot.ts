import type SQLite from 'better-sqlite3'
import { Kysely, SqliteDialect } from 'kysely'
import type { Db } from './open.ts'
import type { Schema } from './schema.ts'
import { openSqlite } from './sqlite/connection.ts'

/** More pages than any database has: the backup is made in one step. */
const allPages = 2 ** 31 - 1

/**
 * Copies a consistent snapshot of the database into one file while others may write. Returns its problems, as
 * sentences, if it is too damaged to copy.
 */
export async function copyDatabase(file: string, target: string): Promise<string[] | undefined> {
  let source: SQLite.Database | undefined
  try {
    source = openSqlite(file, { fileMustExist: true })
    // In one step: a backup in several steps restarts whenever another process writes.
    await source.backup(target, { progress: () => allPages })
  } catch (error) {
    return [describeDamage(error)]
  } finally {
    source?.close()
  }
  const copy = openSqlite(target)
  copy.pragma('journal_mode = DELETE')
  copy.close()
  return undefined
}

/** Describes a damaged database; rethrows other errors. */
function describeDamage(error: unknown): string {
  const { code, message } = error as { code?: string; message: string }
  if (code && /^SQLITE_(CORRUPT|NOTADB|CANTOPEN)/.test(code)) return `The database cannot be read: ${message}.`
  throw error
}

/** Opens a copy read-only, without migrations. */
export const openCopy = (file: string): Db =>
  new Kysely<Schema>({ dialect: new SqliteDialect({ database: openSqlite(file, { readonly: true }) }) })

/** Runs SQLite's integrity and foreign key checks; returns the problems as sentences. */
export function findDamage(file: string): string[] {
  let sqlite: SQLite.Database | undefined
  try {
    sqlite = openSqlite(file, { fileMustExist: true })
    const damage = (sqlite.pragma('integrity_check') as { integrity_check: string }[])
      .map((row) => row.integrity_check)
      .filter((text) => text !== 'ok')
    const dangling = sqlite.pragma('foreign_key_check') as { table: string; rowid: number; parent: string }[]
    return [
      ...damage.map((text) => `The database is damaged: ${text}.`),
      ...dangling.map(
        ({ table, rowid, parent }) => `The row ${rowid} of ${table} names a row of ${parent} that is not there.`,
      ),
    ]
  } catch (error) {
    return [describeDamage(error)]
  } finally {
    sqlite?.close()
  }
}
