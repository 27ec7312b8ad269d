import type { Kysely } from 'kysely'

/**
 * Runs of trainings on other machines, and the lines that their trainers reported and no worker has recorded yet. A run
 * outlives the attempt that started it: the worker of a later attempt attaches to it.
 */
export async function up(db: Kysely<unknown>): Promise<void> {
  const { schema } = db
  await schema
    .createTable('training_runs')
    .addColumn('job_id', 'text', (c) => c.notNull())
    .addColumn('attempt', 'integer', (c) => c.notNull())
    .addColumn('submission_id', 'text', (c) => c.notNull().unique())
    .addColumn('token_encrypted', 'text', (c) => c.notNull())
    .addColumn('received', 'bigint', (c) => c.notNull())
    .addColumn('recorded', 'bigint', (c) => c.notNull())
    .addColumn('created_at', 'bigint', (c) => c.notNull())
    .addColumn('submitted_at', 'bigint')
    .addColumn('seen_at', 'bigint')
    .addColumn('ended_at', 'bigint')
    .addColumn('cleared_at', 'bigint')
    .addPrimaryKeyConstraint('training_runs_key', ['job_id', 'attempt'])
    .execute()
  await schema.createIndex('training_runs_cleared').on('training_runs').column('cleared_at').execute()
  await schema
    .createTable('training_run_lines')
    .addColumn('job_id', 'text', (c) => c.notNull())
    .addColumn('attempt', 'integer', (c) => c.notNull())
    .addColumn('seq', 'bigint', (c) => c.notNull())
    .addColumn('type', 'text', (c) => c.notNull())
    .addColumn('line_json', 'text', (c) => c.notNull())
    .addPrimaryKeyConstraint('training_run_lines_key', ['job_id', 'attempt', 'seq'])
    .execute()
}
