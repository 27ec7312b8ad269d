import type { Kysely } from 'kysely'

/** When a job was deleted. Its row stays, as its models tell what they came from. */
export async function up(db: Kysely<unknown>): Promise<void> {
  await db.schema.alterTable('tuning_jobs').addColumn('deleted_at', 'bigint').execute()
}
