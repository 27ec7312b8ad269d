import type { Kysely } from 'kysely'

/** Requests of each UTC day. */
export async function up(db: Kysely<unknown>): Promise<void> {
  await db.schema
    .createTable('day_counts')
    .addColumn('account_id', 'text', (c) => c.notNull().references('accounts.id'))
    .addColumn('day', 'text', (c) => c.notNull())
    .addColumn('requests', 'bigint', (c) => c.notNull())
    .addPrimaryKeyConstraint('day_counts_key', ['account_id', 'day'])
    .execute()
}
