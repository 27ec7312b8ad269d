import type { Kysely } from 'kysely'

/** Indexes from which the bytes of an account are summed without reading its rows. */
export async function up(db: Kysely<unknown>): Promise<void> {
  for (const table of ['datasets', 'files', 'models'])
    await db.schema.createIndex(`${table}_account_size`).on(table).columns(['account_id', 'size_bytes']).execute()
  await db.schema
    .createIndex('uploads_account_size')
    .on('uploads')
    .columns(['account_id', 'status', 'expires_at', 'size_bytes'])
    .execute()
}
