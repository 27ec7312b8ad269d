import type { Kysely } from 'kysely'

/** Models that users bring have a name; what the comparison of engine and trainer found is remembered. */
export async function up(db: Kysely<unknown>): Promise<void> {
  await db.schema.alterTable('models').addColumn('name', 'text').execute()
  await db.schema.alterTable('models').addColumn('comparison_json', 'text').execute()
}
