import { type ColumnDefinitionBuilder, type Kysely, PostgresAdapter, type SelectQueryBuilder, sql } from 'kysely'
import type { SortedQuery, TimedQuery } from '../../contract/common.ts'
import type { Schema } from './schema.ts'

type Listed =
  | 'datasets'
  | 'tuning_jobs'
  | 'models'
  | 'deployments'
  | 'exports'
  | 'accounts'
  | 'users'
  | 'api_keys'
  | 'webhooks'
  | 'webhook_deliveries'

/** A page of a query, newest first, of what comes after `after`; one more than `limit` when there is more. */
export const newestFirst = <T extends Listed, O>(
  query: SelectQueryBuilder<Schema, T, O>,
  limit: number,
  after: { created_at: number; id: string } | undefined,
): Promise<O[]> => timed(query, { limit }, after)

/**
 * A page of a query as the client filters and sorts it, of what comes after the row `after`; one more than `limit` when
 * there is more.
 */
export function sorted<T extends 'datasets' | 'tuning_jobs' | 'models' | 'deployments', O>(
  query: SelectQueryBuilder<Schema, T, O>,
  asked: SortedQuery,
  after: { created_at: number; name: string; id: string } | undefined,
): Promise<O[]> {
  const { limit, name, sort, order = 'asc' } = asked
  let found = query
  // Without a pattern's own characters, a pattern matches what it says.
  if (name !== undefined)
    found = found.where(sql<boolean>`lower(name) like lower(${`%${name.replace(/[\\%_]/g, '\\$&')}%`}) escape '\\'`)
  if (sort === 'created_at') return timed(found, asked, after)
  return keyset(
    between(found, asked),
    { column: sql`lower(name)`, last: after && sql`lower(${after.name})`, order },
    limit,
    after?.id,
  )
}

/** The same of what has no name. */
export const timed = <T extends Listed, O>(
  query: SelectQueryBuilder<Schema, T, O>,
  asked: TimedQuery,
  after: { created_at: number; id: string } | undefined,
): Promise<O[]> => {
  const { limit, order = 'desc' } = asked
  return keyset(
    between(query, asked),
    { column: sql`created_at`, last: after && sql`${after.created_at}`, order },
    limit,
    after?.id,
  )
}

function between<T extends Listed, O>(
  query: SelectQueryBuilder<Schema, T, O>,
  { created_after, created_before }: TimedQuery,
) {
  const later =
    created_after === undefined ? query : query.where(sql<boolean>`created_at > ${Date.parse(created_after)}`)
  return created_before === undefined ? later : later.where(sql<boolean>`created_at < ${Date.parse(created_before)}`)
}

type Sql = ReturnType<typeof sql>

/** Rows that are equal in `column` are in the order of their ids. */
function keyset<T extends Listed, O>(
  query: SelectQueryBuilder<Schema, T, O>,
  { column, last, order }: { column: Sql; last: Sql | undefined; order: 'asc' | 'desc' },
  limit: number,
  last_id: string | undefined,
): Promise<O[]> {
  const beyond = order === 'asc' ? sql`>` : sql`<`
  const rest =
    last &&
    query.where(sql<boolean>`(${column} ${beyond} ${last} or (${column} = ${last} and id ${beyond} ${last_id}))`)
  return (rest ?? query)
    .orderBy(column, order)
    .orderBy(sql`id`, order)
    .limit(limit + 1)
    .execute() as Promise<O[]>
}

/** Makes a column the primary key that the database counts up by itself: Postgres by identity, SQLite by its row id. */
export const counted = (db: Kysely<unknown>) => (column: ColumnDefinitionBuilder) =>
  db.getExecutor().adapter instanceof PostgresAdapter
    ? column.generatedAlwaysAsIdentity().primaryKey()
    : column.primaryKey().autoIncrement()
