import type { Kysely } from 'kysely'

/** The job whose held-out rows an evaluation asks, and how many of its rows the model was trained on. */
export async function up(db: Kysely<unknown>): Promise<void> {
  await db.schema.alterTable('evaluations').addColumn('held_out_by', 'text').execute()
  await db.schema.alterTable('evaluations').addColumn('trained_rows', 'integer').execute()
}
