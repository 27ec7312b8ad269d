import { sql } from 'kysely'

/** True of the rows that follow `after` in a list that is ordered newest first, by `created_at` and then by `id`. */
export const olderThan = ({ created_at, id }: { created_at: number; id: string }) =>
  sql<boolean>`(created_at < ${created_at} or (created_at = ${created_at} and id < ${id}))`
