// Copies rows from one database to another, table by table in batches, and compares all of them afterwards.
import { createHash } from 'node:crypto'
import { type Kysely, sql } from 'kysely'
import { isPostgres } from '../../platform/db/dialect.ts'
import { MigrateError } from './error.ts'
import type { Table } from './tables.ts'

// The tables are read from the schema, so their types are known to nobody here.
// biome-ignore lint/suspicious/noExplicitAny: see above
export type AnyDb = Kysely<any>
type Row = Record<string, unknown>

/** Where the work stands, in the target database until all of it is done. */
export const progressTable = 'migrate_data_progress'

const batchRows = 200
/** SQLite takes 32,766 parameters in a statement. */
const maxParameters = 30_000

export interface TableResult {
  table: string
  rows: number
  /** SHA-256 over all rows in the order of their keys. */
  sha256: string
}

async function readPage(db: AnyDb, { name, columns, key }: Table, after: unknown[] | undefined): Promise<Row[]> {
  const limit = Math.min(batchRows, Math.floor(maxParameters / columns.length))
  let query = db.selectFrom(name).select(columns).limit(limit)
  for (const column of key) query = query.orderBy(column)
  if (after) {
    const [columnsOfKey, last] = [key.map((column) => sql.ref(column)), after.map((value) => sql.val(value))]
    query = query.where(sql<boolean>`(${sql.join(columnsOfKey)}) > (${sql.join(last)})`)
  }
  return (await query.execute()) as Row[]
}

const keyOf = ({ key }: Table, row: Row) => key.map((column) => row[column])

/** Copies the rows of a table that are not there yet. Each batch is one transaction with its progress. */
export async function copyTable(
  source: AnyDb,
  target: AnyDb,
  table: Table,
  onProgress: (rows: number) => void,
): Promise<void> {
  const { name } = table
  const state = await target.selectFrom(progressTable).selectAll().where('table_name', '=', name).executeTakeFirst()
  if (state?.done) return
  let copied = Number(state?.copied ?? 0)
  let after = state?.last_json ? (JSON.parse(state.last_json) as unknown[]) : undefined
  // What a migration inserted into the new database, the source has too, or has deleted.
  if (!state && table.seeded > 0) await target.deleteFrom(name).execute()
  for (;;) {
    const rows = await readPage(source, table, after)
    const done = rows.length === 0 ? 1 : 0
    copied += rows.length
    if (rows.length > 0) after = keyOf(table, rows.at(-1)!)
    const progress = { table_name: name, last_json: after ? JSON.stringify(after) : null, copied, done }
    try {
      await target.transaction().execute(async (trx) => {
        if (rows.length > 0)
          await withGivenNumbers(trx, table, async () => void (await trx.insertInto(name).values(rows).execute()))
        await trx
          .insertInto(progressTable)
          .values(progress)
          .onConflict((conflict) => conflict.column('table_name').doUpdateSet(progress))
          .execute()
      })
    } catch (error) {
      throw new MigrateError(
        `Rows of ${name} after ${JSON.stringify(keyOf(table, rows[0] ?? {}))} cannot be written: ` +
          `${(error as Error).message}. Nothing of the source was changed.`,
      )
    }
    onProgress(rows.length)
    if (done) break
  }
  if (table.counter) await setCounter(target, table, await counterOf(source, table))
}

/** Lets rows keep their numbers in a column where Postgres always gives them. */
async function withGivenNumbers(trx: AnyDb, { name, counter }: Table, insert: () => Promise<void>): Promise<void> {
  if (!counter || !isPostgres(trx)) return await insert()
  const generated = async (how: 'always' | 'by default') =>
    await sql`alter table ${sql.table(name)} alter column ${sql.ref(counter)} set generated ${sql.raw(how)}`.execute(
      trx,
    )
  const { rows } = await sql<{ kind: string | null }>`
    select identity_generation as kind from information_schema.columns
    where table_schema = current_schema() and table_name = ${name} and column_name = ${counter}
  `.execute(trx)
  const always = rows[0]?.kind === 'ALWAYS'
  if (always) await generated('by default')
  await insert()
  if (always) await generated('always')
}

/** The highest number that the database has given in this table, which may be of a deleted row. */
async function counterOf(db: AnyDb, { name, counter }: Table): Promise<number> {
  const column = sql.ref(counter!)
  const { rows: highest } = await sql<{
    value: number | null
  }>`select max(${column}) as value from ${sql.table(name)}`.execute(db)
  const { rows: given } = isPostgres(db)
    ? await sql<{ value: number | null }>`
        select pg_sequence_last_value(pg_get_serial_sequence(${name}, ${counter!})::regclass) as value
      `.execute(db)
    : await sql<{ value: number }>`select seq as value from sqlite_sequence where name = ${name}`.execute(db)
  return Math.max(0, Number(highest[0]?.value ?? 0), Number(given[0]?.value ?? 0))
}

async function setCounter(db: AnyDb, { name, counter }: Table, value: number): Promise<void> {
  if (value === 0) return
  if (isPostgres(db)) await sql`select setval(pg_get_serial_sequence(${name}, ${counter!}), ${value})`.execute(db)
  else {
    await sql`delete from sqlite_sequence where name = ${name}`.execute(db)
    await sql`insert into sqlite_sequence (name, seq) values (${name}, ${value})`.execute(db)
  }
}

/** Compares all rows of a table in both databases. Throws a MigrateError that names the first difference. */
export async function compareTable(source: AnyDb, target: AnyDb, table: Table): Promise<TableResult> {
  const hash = createHash('sha256')
  let rows = 0
  for (let after: unknown[] | undefined; ; ) {
    const expected = await readPage(source, table, after)
    const page = await readPage(target, table, after)
    for (let index = 0; index < Math.max(expected.length, page.length); index++) {
      const [own, other] = [expected[index], page[index]].map((row) => row && canonical(table, row))
      if (own === undefined || own !== other) {
        const key = JSON.stringify(keyOf(table, expected[index] ?? page[index]!))
        throw new MigrateError(
          `The row ${key} of ${table.name} is not the same in both databases. If the source was used since the copy ` +
            'began, empty the target and begin again.',
        )
      }
      hash.update(own).update('\n')
      rows++
    }
    if (expected.length === 0) return { table: table.name, rows, sha256: hash.digest('hex') }
    after = keyOf(table, expected.at(-1)!)
  }
}

/** A row as text, the same from both databases. */
const canonical = ({ columns }: Table, row: Row): string =>
  JSON.stringify(
    columns.map((column) => {
      const value = row[column]
      return value instanceof Uint8Array ? { base64: Buffer.from(value).toString('base64') } : value
    }),
  )

/** The first table that has rows other than those that migrations insert. */
export async function firstWithRows(db: AnyDb, tables: Table[]): Promise<string | undefined> {
  for (const { name, key, seeded } of tables)
    if (
      (
        await db
          .selectFrom(name)
          .select(key)
          .limit(seeded + 1)
          .execute()
      ).length > seeded
    )
      return name
  return undefined
}
