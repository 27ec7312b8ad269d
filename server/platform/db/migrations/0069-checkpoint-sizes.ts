import type { Kysely } from 'kysely'

/** The bytes of the checkpoints of jobs, for the storage quota. Those of earlier jobs count from their next one on. */
export async function up({ schema }: Kysely<unknown>): Promise<void> {
  await schema
    .alterTable('tuning_jobs')
    .addColumn('checkpoint_bytes', 'bigint', (column) => column.notNull().defaultTo(0))
    .execute()
  await schema
    .createIndex('tuning_jobs_account_size')
    .on('tuning_jobs')
    .columns(['account_id', 'status', 'checkpoint_bytes'])
    .execute()
}
