import type { Kysely } from 'kysely'

/** For whom a running entry gives way, so that only one does for each account that waits. */
export async function up(db: Kysely<unknown>): Promise<void> {
  await db.schema
    .alterTable('queue_entries')
    .addColumn('promised_until', 'bigint', (c) => c.notNull().defaultTo(0))
    .execute()
}
