import type { Kysely } from 'kysely'

/** Downloads of base models, and the jobs that wait for them. */
export async function up({ schema }: Kysely<unknown>): Promise<void> {
  await schema
    .createTable('model_downloads')
    .addColumn('model_id', 'text', (c) => c.primaryKey())
    .addColumn('status', 'text', (c) => c.notNull())
    .addColumn('revision', 'text')
    .addColumn('bytes', 'bigint', (c) => c.notNull())
    .addColumn('total_bytes', 'bigint')
    .addColumn('failures', 'integer', (c) => c.notNull())
    .addColumn('error_json', 'text')
    .addColumn('account_id', 'text', (c) => c.notNull().references('accounts.id'))
    .addColumn('shared', 'integer', (c) => c.notNull())
    .addColumn('created_at', 'bigint', (c) => c.notNull())
    .addColumn('updated_at', 'bigint', (c) => c.notNull())
    .execute()
  await schema
    .createTable('jobs_awaiting_weights')
    .addColumn('job_id', 'text', (c) => c.primaryKey().references('tuning_jobs.id').onDelete('cascade'))
    .addColumn('model_id', 'text', (c) => c.notNull())
    .execute()
  await schema.createIndex('jobs_awaiting_weights_model').on('jobs_awaiting_weights').column('model_id').execute()
}
