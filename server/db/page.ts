import { type ColumnDefinitionBuilder, type Kysely, type SelectQueryBuilder, sql } from 'kysely'
import type { SortedQuery, TimedQuery } from '../../contract/common.ts'
import { isPostgres } from './dialect.ts'
import type { Schema } from './schema.ts'

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

/** The response of a list that was read with one item more than `limit`, which tells whether there are more. */
export const pageOf = <T>(items: readonly T[], limit: number): Page<T> => ({
  items: items.slice(0, limit),
  has_more: items.length > limit,
})

/** The same in the shape of OpenAI's lists. */
export function openaiPageOf<T extends { id: string }>(rows: readonly T[], limit: number) {
  const { items, has_more } = pageOf(rows, limit)
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

/** Filtered and sorted as the client requests, by name or by time. */
export function sortedPage<T extends 'datasets' | 'tuning_jobs' | 'models' | 'deployments', O>(
  query: SelectQueryBuilder<Schema, T, O>,
  page: SortedQuery,
  after: { created_at: number; name: string; id: string } | undefined,
): Promise<O[]> {
  const { limit, name, sort, order = 'asc' } = page
  let filtered = query
  // Escape the wildcards of `like`, so that they match themselves.
  if (name !== undefined)
    filtered = filtered.where(
      sql<boolean>`lower(name) like lower(${`%${name.replace(/[\\%_]/g, '\\$&')}%`}) escape '\\'`,
    )
  if (sort === 'created_at') return timedPage(filtered, page, after)
  return keyset(
    between(filtered, page),
    { column: sql`lower(name)`, last: after && sql`lower(${after.name})`, order },
    limit,
    after?.id,
  )
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

/** Orders by `column`, then by id. */
function keyset<T extends ListedTable, O>(
  query: SelectQueryBuilder<Schema, T, O>,
  { column, last, order }: { column: Sql; last: Sql | undefined; order: 'asc' | 'desc' },
  limit: number,
  lastId: string | undefined,
): Promise<O[]> {
  const operator = order === 'asc' ? sql`>` : sql`<`
  // Compared as a pair, so that SQLite finds the first row in an index.
  const rest = last && query.where(sql<boolean>`(${column}, id) ${operator} (${last}, ${lastId})`)
  return (rest ?? query)
    .orderBy(column, order)
    .orderBy(sql`id`, order)
    .limit(limit + 1)
    .execute() as Promise<O[]>
}

/** The number of rows that a query finds. */
export async function countRows<T extends keyof Schema, O>(query: SelectQueryBuilder<Schema, T, O>): Promise<number> {
  const { count } = await query.clearSelect().select(sql<number>`count(*)`.as('count')).executeTakeFirstOrThrow()
  return Number(count)
}

/** Makes a column an auto-increment primary key: identity in Postgres, row id in SQLite. */
export const counted = (db: Kysely<unknown>) => (column: ColumnDefinitionBuilder) =>
  isPostgres(db) ? column.generatedAlwaysAsIdentity().primaryKey() : column.primaryKey().autoIncrement()
