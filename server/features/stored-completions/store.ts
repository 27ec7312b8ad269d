import { sql } from 'kysely'
import type { StoredFilter } from '../../../contract/stored-completions.ts'
import { isPostgres } from '../../platform/db/dialect.ts'
import { type MetadataFilter, metadataConditions } from '../../platform/db/metadata.ts'
import type { Db, Queryable, Trx } from '../../platform/db/open.ts'
import { sizedPage } from '../../platform/db/page.ts'
import type { Row } from '../../platform/db/schema.ts'

export type StoredRow = Row<'stored_completions'>

export const insert = (db: Db, row: StoredRow) => db.insertInto('stored_completions').values(row).execute()

const all = (db: Queryable, account_id: string, now: number) =>
  db.selectFrom('stored_completions').selectAll().where('account_id', '=', account_id).where('expires_at', '>', now)

export const find = (db: Queryable, account_id: string, id: string, now: number) =>
  all(db, account_id, now).where('id', '=', id).executeTakeFirst()

type Filter = Omit<StoredFilter, 'metadata'> & { metadata?: MetadataFilter }

function filtered(
  db: Queryable,
  account_id: string,
  { model, metadata, created_after, created_before }: Filter,
  now: number,
) {
  let query = all(db, account_id, now).where((and) => and.and(metadataConditions(db, metadata)))
  if (model !== undefined) query = query.where('model', '=', model)
  if (created_after !== undefined) query = query.where('created_at', '>', Date.parse(created_after))
  if (created_before !== undefined) query = query.where('created_at', '<', Date.parse(created_before))
  return query
}

/** A page of those that match. */
export const list = (
  db: Db,
  account_id: string,
  filter: Filter,
  page: { limit: number; order: 'asc' | 'desc' },
  after: StoredRow | undefined,
  now: number,
) => sizedPage(filtered(db, account_id, filter, now), ['metadata_json', 'request_json', 'response_json'], page, after)

export const setMetadata = (trx: Trx, account_id: string, id: string, metadata_json: string) =>
  trx
    .updateTable('stored_completions')
    .set({ metadata_json })
    .where('account_id', '=', account_id)
    .where('id', '=', id)
    .execute()

export const remove = (trx: Trx, account_id: string, ids: string[]) =>
  trx.deleteFrom('stored_completions').where('account_id', '=', account_id).where('id', 'in', ids).execute()

/** Deletes up to `limit` rows whose time is over. Resolves with how many these were. */
export async function removeExpired(db: Db, now: number, limit: number): Promise<number> {
  const { numAffectedRows } = await sql`delete from stored_completions where (account_id, id) in
    (select account_id, id from stored_completions where expires_at <= ${now} limit ${limit})`.execute(db)
  return Number(numAffectedRows ?? 0)
}

/** Deletes up to `limit` rows that match. Resolves with their ids. */
export async function removeMatching(
  trx: Trx,
  account_id: string,
  filter: StoredFilter,
  limit: number,
  now: number,
): Promise<string[]> {
  const rows = await filtered(trx, account_id, filter, now).clearSelect().select('id').limit(limit).execute()
  const ids = rows.map(({ id }) => id)
  if (ids.length > 0) await remove(trx, account_id, ids)
  return ids
}

/**
 * Empties SQLite's write-ahead log, which has pages from before a deletion. Resolves with whether no reader prevents
 * it.
 */
export async function emptyWal(db: Db): Promise<boolean> {
  if (isPostgres(db)) return true
  const { rows } = await sql<{ busy: number }>`pragma wal_checkpoint(truncate)`.execute(db)
  return rows[0]?.busy === 0
}
