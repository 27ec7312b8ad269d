import type { Kysely } from 'kysely'

/** What takes processor time from a running job, to show why it is slow. */
export async function up(db: Kysely<unknown>): Promise<void> {
  await db.schema.alterTable('tuning_jobs').addColumn('slowed_by', 'text').execute()
}
