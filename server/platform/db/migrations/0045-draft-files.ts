import type { Kysely } from 'kysely'

/** The SHA-256 of a model's draft file; null if it has none, or no longer: it goes with the dataset of its training. */
export async function up(db: Kysely<unknown>): Promise<void> {
  await db.schema.alterTable('models').addColumn('drafts_sha256', 'text').execute()
}
