import type { Kysely } from 'kysely'

/** Imported models have a name; the comparison of engine and trainer is stored. */
export async function up(db: Kysely<unknown>): Promise<void> {
  await db.schema.alterTable('models').addColumn('name', 'text').execute()
  await db.schema.alterTable('models').addColumn('comparison_json', 'text').execute()
}
