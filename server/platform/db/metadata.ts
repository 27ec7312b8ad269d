import { sql } from 'kysely'
import { isPostgres } from './dialect.ts'

/** Pairs that a row must have in `metadata_json`, or 'none' for rows without any. */
export type MetadataFilter = Record<string, string> | 'none' | undefined

/** Conditions on `metadata_json`, to be joined by `and`. */
export function metadataConditions(db: Parameters<typeof isPostgres>[0], filter: MetadataFilter) {
  if (filter === 'none') return [sql<boolean>`metadata_json = '{}'`]
  return Object.entries(filter ?? {}).map(([key, value]) =>
    isPostgres(db)
      ? sql<boolean>`metadata_json::jsonb ->> ${key}::text = ${value}`
      : sql<boolean>`exists (select 1 from json_each(metadata_json) where key = ${key} and value = ${value})`,
  )
}
