import { readdirSync } from 'node:fs'
import { type Kysely, sql } from 'kysely'
import type { Schema } from './schema.ts'

const folder = new URL('./migrations/', import.meta.url)

/** The database was written by a later version than this one. */
export class NewerDatabase extends Error {}

/** A row of `migrations` while `./tunery migrate-data` copies into the database: no server may open it. */
export const unfinishedMove = 'unfinished-migrate-data'

/** The migrations that a database lacks, in their order, and those that this version does not know. Changes nothing. */
export async function readMigrations(db: Kysely<Schema>): Promise<{ pending: string[]; unknown: string[] }> {
  const found = await db
    .selectFrom('migrations')
    .select('name')
    .execute()
    .catch((error: Error & { code?: string }) => {
      // A new database.
      if (error.code === '42P01' || /no such table/.test(error.message)) return []
      throw error
    })
  const applied = new Set(found.map(({ name }) => name))
  const names = readdirSync(folder)
    .filter((file) => /^\d{4}-[a-z0-9-]+\.ts$/.test(file))
    .sort()
    .map((file) => file.slice(0, -3))
  return {
    pending: names.filter((name) => !applied.has(name)),
    unknown: [...applied].filter((name) => !names.includes(name)),
  }
}

/**
 * Applies pending migrations in the order of their names and returns their names. Each runs in one transaction with its
 * row in `migrations`, so a failure leaves nothing behind; Kysely's migrator uses no transaction for SQLite. Throws
 * NewerDatabase if the database has migrations that this version does not know.
 */
export async function migrate(db: Kysely<Schema>): Promise<string[]> {
  await sql`create table if not exists migrations (name text primary key, applied_at bigint not null)`.execute(db)
  const { pending, unknown } = await readMigrations(db)
  if (unknown.includes(unfinishedMove))
    throw new NewerDatabase(
      "'./tunery migrate-data' has not finished with this database. Run the same command again to continue it.",
    )
  if (unknown.length > 0)
    throw new NewerDatabase(
      `This database was written by a newer Tunery (it has the migrations ${unknown.join(', ')}); ` +
        'start that version or a later one.',
    )
  const added: string[] = []
  for (const name of pending) {
    const { up } = (await import(new URL(`${name}.ts`, folder).href)) as { up(db: Kysely<unknown>): Promise<void> }
    const appliedNow = await db.transaction().execute(async (trx) => {
      // Another process that started at the same time may have applied it first.
      if (await trx.selectFrom('migrations').select('name').where('name', '=', name).executeTakeFirst()) return false
      await up(trx as unknown as Kysely<unknown>)
      await trx.insertInto('migrations').values({ name, applied_at: Date.now() }).execute()
      return true
    })
    if (appliedNow) added.push(name)
  }
  return added
}
