import type { Kysely } from 'kysely'

/** An index for what all accounts used on one day. */
export async function up(db: Kysely<unknown>): Promise<void> {
  await db.schema.createIndex('usage_days_day').on('usage_days').column('day').execute()
}
