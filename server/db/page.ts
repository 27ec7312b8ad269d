import { type SelectQueryBuilder, sql } from 'kysely'
import type { Schema } from './schema.ts'

/** True of the rows that follow `after` in a list that is ordered newest first, by `created_at` and then by `id`. */
const olderThan = ({ created_at, id }: { created_at: number; id: string }) =>
  sql<boolean>`(created_at < ${created_at} or (created_at = ${created_at} and id < ${id}))`

type Listed = 'datasets' | 'tuning_jobs' | 'models' | 'deployments' | 'exports' | 'accounts' | 'users' | 'api_keys' | 'webhooks' | 'webhook_deliveries'

/** A page of a query, newest first, of what comes after `after`; one more than `limit` when there is more. */
export function newestFirst<T extends Listed, O>(
  query: SelectQueryBuilder<Schema, T, O>,
  limit: number,
  after: { created_at: number; id: string } | undefined,
): Promise<O[]> {
  return (after ? query.where(olderThan(after)) : query)
    .orderBy(sql`created_at`, 'desc')
    .orderBy(sql`id`, 'desc')
    .limit(limit + 1)
    .execute() as Promise<O[]>
}
