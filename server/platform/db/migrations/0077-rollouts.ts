import type { Kysely } from 'kysely'

/** Answers of the steps of jobs that learn from graders, with what the graders gave them. */
export async function up({ schema }: Kysely<unknown>): Promise<void> {
  await schema
    .createTable('job_rollouts')
    .addColumn('job_id', 'text', (column) => column.notNull().references('tuning_jobs.id'))
    .addColumn('step', 'integer', (column) => column.notNull())
    .addColumn('split', 'text', (column) => column.notNull())
    .addColumn('figures_json', 'text', (column) => column.notNull())
    .addColumn('groups_json', 'text', (column) => column.notNull())
    .addPrimaryKeyConstraint('job_rollouts_key', ['job_id', 'step', 'split'])
    .execute()
}
