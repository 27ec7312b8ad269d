// Part of a name in a list. A text that many names have is found soon by reading the list in its order; one that few
// have, by an index of trigrams: FTS5 on SQLite, pg_trgm on Postgres (migration 0041).
import { type RawBuilder, sql } from 'kysely'
import { isPostgres } from './dialect.ts'
import type { Db } from './open.ts'

/** Rows that are read in the order of the list before the index is used. */
export const scannedRows = 4000

/** With more candidates than this, reading on in the order of the list is as fast. */
const maxCandidates = 20_000

/** Trigrams that are looked up: more of them hardly leave fewer candidates. */
const maxTrigrams = 24

/** A text as names are compared: ASCII letters in lower case, others as they are. */
export const foldCase = (text: string): string => text.replace(/[A-Z]+/g, (letters) => letters.toLowerCase())

/** Whether the name of a row has the text, whose wildcards of `like` match themselves. */
export const nameHas = (text: string): RawBuilder<boolean> =>
  // No name has a null character, which ends a text in SQLite and is refused by Postgres.
  text.includes('\0')
    ? sql<boolean>`1 = 0`
    : sql<boolean>`lower(name) like ${`%${foldCase(text).replace(/[\\%_]/g, '\\$&')}%`} escape '\\'`

/**
 * Whether an index can find the text: from three characters on, in Postgres letters or digits. A capital sigma has two
 * small forms there, of which a text and a name could get different ones.
 */
export const isIndexed = (db: Db, text: string): boolean =>
  !text.includes('\0') &&
  (isPostgres(db) ? /[\p{L}\p{N}]{3}/u.test(text) && !text.includes('Σ') : [...text].length >= 3)

/**
 * SQLite: the ids of the rows of an account whose names have all trigrams of the text, as a query with the column
 * `object_id`. Undefined if there are too many of them.
 */
export async function findCandidates(
  db: Db,
  kind: string,
  account_id: string,
  text: string,
): Promise<RawBuilder<{ object_id: string }> | undefined> {
  const characters = [...foldCase(text)]
  const all = [...new Set(characters.slice(2).map((_, index) => characters.slice(index, index + 3).join('')))]
  const step = Math.max(1, all.length / maxTrigrams)
  const some = Array.from({ length: Math.min(all.length, maxTrigrams) }, (_, index) => all[Math.floor(index * step)]!)
  const match = some.map((trigram) => `"${trigram.replaceAll('"', '""')}"`).join(' ')
  const scope = sql`(select scope from name_scopes where kind = ${kind} and account_id = ${account_id})`
  const matches = sql`name_trigrams match ${match} and rowid between ${scope} << 32 and (${scope} + 1) << 32`
  const { count } = await db
    .selectFrom(sql<object>`(select rowid from name_trigrams where ${matches} limit ${maxCandidates + 1})`.as('found'))
    .select(sql<number>`count(*)`.as('count'))
    // An order makes it a list, which is not read on the main thread.
    .orderBy('count')
    .executeTakeFirstOrThrow()
  if (count > maxCandidates) return undefined
  return sql`(
    select id as object_id from (select rowid as key from name_trigrams where ${matches}) as found
    cross join name_keys where name_keys.key = found.key
  )`
}
