import type { Kysely } from 'kysely'

/** The rows that a job held out of its dataset, as its trainer reports them. */
export async function up(db: Kysely<unknown>): Promise<void> {
  await db.schema
    .createTable('job_held_out')
    .addColumn('job_id', 'text', (c) => c.primaryKey().references('tuning_jobs.id'))
    .addColumn('rows_json', 'text', (c) => c.notNull())
    .execute()
}
