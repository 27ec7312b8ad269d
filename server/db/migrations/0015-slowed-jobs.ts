import type { Kysely } from 'kysely'

/** What keeps a running job from the processor, so that it can say why it is slow. */
export async function up(db: Kysely<unknown>): Promise<void> {
  await db.schema.alterTable('tuning_jobs').addColumn('slowed_by', 'text').execute()
}
