import type { Kysely } from 'kysely'

/** Jobs whose result is evaluated when it is registered. */
export async function up(db: Kysely<unknown>): Promise<void> {
  const { schema } = db
  await schema.alterTable('tuning_jobs').addColumn('evaluation_id', 'text').execute()
  await schema.alterTable('tuning_jobs').addColumn('result_evaluation_id', 'text').execute()
}
