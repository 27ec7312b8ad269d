import { type ColumnDefinitionBuilder, type Kysely, type RawBuilder, type SelectQueryBuilder, sql } from 'kysely'
import type { SortedQuery, TimedQuery } from '../../../contract/common.ts'
import { isPostgres } from './dialect.ts'
import { findCandidates, foldCase, isIndexed, nameHas, scannedRows } from './name-search.ts'
import type { Db } from './open.ts'
import type { Row, Schema } from './schema.ts'

type ListedTable =
  | 'datasets'
  | 'files'
  | 'batches'
  | 'stored_completions'
  | 'evals'
  | 'evaluations'
  | 'tuning_jobs'
  | 'models'
  | 'shares'
  | 'deployments'
  | 'deployment_history'
  | 'exports'
  | 'accounts'
  | 'users'
  | 'api_keys'
  | 'sessions'
  | 'sign_in_tokens'
  | 'webhooks'
  | 'webhook_deliveries'

export interface Page<T> {
  items: T[]
  has_more: boolean
}

/**
 * Bytes of rows that one page takes, about: as they are stored, and so about as they are sent. A page of rows that
 * clients may make large ends there, with one row at least, and says that there are more.
 */
export const pageBytes = 8e6

/** How many of the first rows a page takes. */
export function countFitting(rows: readonly { bytes: number }[]): number {
  let bytes = 0
  const end = rows.findIndex((row, index) => {
    bytes += row.bytes
    return index > 0 && bytes > pageBytes
  })
  return end === -1 ? rows.length : end
}

/** The response of a list that was read with one item more than `limit`, which tells whether there are more. */
export const pageOf = <T>(items: readonly T[], limit: number): Page<T> => ({
  items: items.slice(0, limit),
  has_more: items.length > limit,
})

/** The same in the shape of OpenAI's lists. */
export const openaiPageOf = <T extends { id: string }>(rows: readonly T[], limit: number) =>
  openaiPage(pageOf(rows, limit))

/** A page in the shape of OpenAI's lists. */
export function openaiPage<T extends { id: string }>({ items, has_more }: Page<T>) {
  return {
    object: 'list' as const,
    data: items,
    first_id: items[0]?.id ?? null,
    last_id: items.at(-1)?.id ?? null,
    has_more,
  }
}

// Keyset pagination. Each function returns the rows after `after`: up to `limit`, and one more if there are more.

/** Newest first. */
export const newestFirst = <T extends ListedTable, O>(
  query: SelectQueryBuilder<Schema, T, O>,
  limit: number,
  after: { created_at: number; id: string } | undefined,
): Promise<O[]> => timedPage(query, { limit }, after)

type NamedTable = 'datasets' | 'tuning_jobs' | 'models' | 'deployments'

/**
 * Filtered and sorted as the client requests, by name or by time. `columns`: the account, and other values that rows
 * must have; `conditions`: what else must hold for them.
 */
export async function sortedPage<T extends NamedTable>(
  db: Db,
  table: T,
  columns: Partial<Row<T>> & { account_id: string },
  page: SortedQuery,
  after: { created_at: number; name: string; id: string } | undefined,
  conditions: readonly RawBuilder<boolean>[] = [],
): Promise<Row<T>[]> {
  // All of them have the columns that are used here.
  const of = table as 'datasets'
  type Rows = SelectQueryBuilder<Schema, 'datasets', Row<T>>
  const { limit, name, sort } = page
  const order = page.order ?? (sort === 'name' ? 'asc' : 'desc')
  const column = sort === 'name' ? lowerName : sql.ref('created_at')
  const last = after && sql`${sort === 'name' ? foldCase(after.name) : after.created_at}`
  const position: Position = { column, last, order }
  const filter = (rows: Rows, values: object) =>
    Object.entries(values).reduce(
      (query, [key, value]) =>
        query.where(value === null ? sql<boolean>`${sql.ref(key)} is null` : sql<boolean>`${sql.ref(key)} = ${value}`),
      conditions.reduce((query, condition) => query.where(condition), between(rows, page)),
    )
  const every = db.selectFrom(of).selectAll(of) as unknown as Rows
  const all = filter(every, columns)
  const read = (rows: Rows) => keyset(rows, position, limit, after?.id)
  if (name === undefined) return read(all)
  const scanned = all.where(nameHas(name))
  if (!isIndexed(db, name)) return read(scanned)

  // The row at which the scan ends. Status and, in the order of names, time do not count here: no index has both.
  const { account_id } = columns
  const ofAccount = every.where(sql<boolean>`account_id = ${account_id}`)
  const end = (await ordered(sort === 'name' ? ofAccount : between(ofAccount, page), position, after?.id)
    .clearSelect()
    .select([column.as('value'), sql<string>`id`.as('id')])
    .offset(scannedRows)
    .limit(1)
    .executeTakeFirst()) as { value: string | number; id: string } | undefined
  if (!end) return read(scanned)
  const near = await read(scanned.where(compare(column, order === 'asc' ? '<=' : '>=', sql`${end.value}`, end.id)))
  if (near.length > limit) return near

  if (isPostgres(db))
    // An expression, so that the order's index is not preferred to that of names.
    return keyset(
      scanned,
      { ...position, sorted: sort === 'name' ? sql`lower(name) || ''` : sql`created_at + 0` },
      limit,
      after?.id,
    )
  const candidates = await findCandidates(db, table, account_id, name)
  if (!candidates) return read(scanned)
  const matching = db
    .selectFrom(candidates.as('found'))
    .crossJoin(of)
    .selectAll(of)
    .where(sql<boolean>`id = object_id`) as unknown as Rows
  return read(filter(matching, columns).where(nameHas(name)))
}

/** The same for tables without a name column: filtered and sorted by time. */
export const timedPage = <T extends ListedTable, O>(
  query: SelectQueryBuilder<Schema, T, O>,
  page: TimedQuery & { by?: 'created_at' | 'updated_at' },
  after: { created_at: number; updated_at?: number; id: string } | undefined,
): Promise<O[]> => {
  const { limit, order = 'desc', by = 'created_at' } = page
  return keyset(
    between(query, page),
    { column: sql.ref(by), last: after && sql`${after[by]}`, order },
    limit,
    after?.id,
  )
}

/**
 * The same for rows that clients may make large: a page of at most `pageBytes`. Reads the sizes of their large
 * `columns` first, then the rows that fit.
 */
export async function sizedPage<T extends ListedTable, O>(
  query: SelectQueryBuilder<Schema, T, O>,
  columns: readonly (keyof Schema[T] & string)[],
  page: Parameters<typeof timedPage>[1],
  after: Parameters<typeof timedPage>[2],
): Promise<Page<O>> {
  const { limit, order = 'desc', by = 'created_at' } = page
  for (;;) {
    const sizes = (await timedPage(
      query.clearSelect().select([sql<string>`id`.as('id'), bytesOf(columns).as('bytes')]),
      page,
      after,
    )) as { id: string; bytes: number }[]
    const count = Math.min(limit, countFitting(sizes))
    const ids = sizes.slice(0, count).map(({ id }) => id)
    const has_more = sizes.length > count
    if (ids.length === 0) return { items: [], has_more }
    const items = await ordered(
      query.where(sql<boolean>`id in (${sql.join(ids)})`),
      { column: sql.ref(by), last: undefined, order },
      undefined,
    ).execute()
    // All of them were deleted meanwhile.
    if (items.length > 0) return { items, has_more }
  }
}

/** Bytes of columns, together. */
export const bytesOf = (columns: readonly string[]) =>
  sql<number>`${sql.join(
    columns.map((column) => sql`coalesce(octet_length(${sql.ref(column)}), 0)`),
    sql` + `,
  )}`

function between<T extends ListedTable, O>(
  query: SelectQueryBuilder<Schema, T, O>,
  { created_after, created_before }: TimedQuery,
) {
  const lowerBounded =
    created_after === undefined ? query : query.where(sql<boolean>`created_at > ${Date.parse(created_after)}`)
  return created_before === undefined
    ? lowerBounded
    : lowerBounded.where(sql<boolean>`created_at < ${Date.parse(created_before)}`)
}

type Sql = ReturnType<typeof sql>

const lowerName = sql`lower(name)`

/**
 * Compares rows with a position by column and id. As a pair, so that SQLite finds the row in an index; of a pair with
 * an expression it does not, and needs the expression alone.
 */
function compare(column: Sql, operator: '<' | '<=' | '>' | '>=', value: Sql, id: string | undefined) {
  const pair = sql<boolean>`(${column}, id) ${sql.raw(operator)} (${value}, ${id})`
  return column === lowerName ? sql<boolean>`${column} ${sql.raw(`${operator[0]}=`)} ${value} and ${pair}` : pair
}

interface Position {
  column: Sql
  /** The column of the last row of the page before. */
  last: Sql | undefined
  order: 'asc' | 'desc'
  /** What to sort by, where it is not the column as it stands. */
  sorted?: Sql
}

/** Orders by `column`, then by id. */
const keyset = <T extends ListedTable, O>(
  query: SelectQueryBuilder<Schema, T, O>,
  position: Position,
  limit: number,
  lastId: string | undefined,
): Promise<O[]> =>
  ordered(query, position, lastId)
    .limit(limit + 1)
    .execute() as Promise<O[]>

function ordered<T extends ListedTable, O>(
  query: SelectQueryBuilder<Schema, T, O>,
  { column, last, order, sorted = column }: Position,
  lastId: string | undefined,
): SelectQueryBuilder<Schema, T, O> {
  const rest = last && query.where(compare(column, order === 'asc' ? '>' : '<', last, lastId))
  return (rest ?? query).orderBy(sorted, order).orderBy(sql`id`, order)
}

/** The number of rows that a query finds. */
export async function countRows<T extends keyof Schema, O>(query: SelectQueryBuilder<Schema, T, O>): Promise<number> {
  const { count } = await query.clearSelect().select(sql<number>`count(*)`.as('count')).executeTakeFirstOrThrow()
  return Number(count)
}

/** Makes a column an auto-increment primary key: identity in Postgres, row id in SQLite. */
export const counted = (db: Kysely<unknown>) => (column: ColumnDefinitionBuilder) =>
  isPostgres(db) ? column.generatedAlwaysAsIdentity().primaryKey() : column.primaryKey().autoIncrement()
