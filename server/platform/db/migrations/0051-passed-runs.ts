import type { Kysely } from 'kysely'

/** Whether a run in a cluster is to stop at a checkpoint, as its account's turn is over. */
export async function up(db: Kysely<unknown>): Promise<void> {
  await db.schema
    .alterTable('training_runs')
    .addColumn('turn_over', 'integer', (c) => c.notNull().defaultTo(0))
    .execute()
}
