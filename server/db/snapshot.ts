import SQLite from 'better-sqlite3'
import { Kysely, SqliteDialect } from 'kysely'
import type { Db } from './open.ts'
import type { Schema } from './schema.ts'

/** More pages than a database has. */
const all = 2 ** 31 - 1

/**
 * Copies the database as it is at one moment, beside whoever writes to it, into one file of its own. Returns what is
 * wrong with it where it is too damaged for that.
 */
export async function copyDatabase(file: string, target: string): Promise<string[] | undefined> {
  let source: SQLite.Database | undefined
  try {
    source = new SQLite(file, { fileMustExist: true })
    // In one step: one that is made in several begins anew whenever somebody writes in between.
    await source.backup(target, { progress: () => all })
  } catch (error) {
    return [unreadable(error)]
  } finally {
    source?.close()
  }
  const copy = new SQLite(target)
  copy.pragma('journal_mode = DELETE')
  copy.close()
  return undefined
}

/** In words; throws what is no damage. */
function unreadable(error: unknown): string {
  const { code, message } = error as { code?: string; message: string }
  if (code && /^SQLITE_(CORRUPT|NOTADB|CANTOPEN)/.test(code)) return `The database cannot be read: ${message}.`
  throw error
}

/** Opens a copy that nobody writes to, as it is. */
export const openCopy = (file: string): Db =>
  new Kysely<Schema>({ dialect: new SqliteDialect({ database: new SQLite(file, { readonly: true }) }) })

/** What is wrong inside the database, by SQLite's own checks; nothing where it is whole. */
export function findDamage(file: string): string[] {
  let sqlite: SQLite.Database | undefined
  try {
    sqlite = new SQLite(file, { fileMustExist: true })
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
    return [unreadable(error)]
  } finally {
    sqlite?.close()
  }
}
