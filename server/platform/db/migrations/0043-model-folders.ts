import type { Kysely } from 'kysely'

/**
 * What vLLM must serve as a model. Models that are older have no hash: they are verified by their probabilities alone.
 */
export async function up(db: Kysely<unknown>): Promise<void> {
  await db.schema.alterTable('models').addColumn('folder_sha256', 'text').execute()
}
