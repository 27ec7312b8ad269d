import type { Kysely } from 'kysely'

/** When grading ends early, and answers that a grader failed to score. */
export async function up({ schema }: Kysely<unknown>): Promise<void> {
  await schema.alterTable('evaluations').addColumn('grading_json', 'text').execute()
  await schema
    .alterTable('evaluation_answers')
    .addColumn('ungraded', 'integer', (column) => column.notNull().defaultTo(0))
    .execute()
}
