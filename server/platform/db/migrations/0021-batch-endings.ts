import { type Kysely, sql } from 'kysely'

/**
 * How a batch ends is decided before its results are published. Responses are kept while their conversation continues.
 */
export async function up(db: Kysely<unknown>): Promise<void> {
  const { schema } = db
  await schema.alterTable('batches').addColumn('ending', 'text').execute()
  await schema.alterTable('responses').addColumn('used_at', 'bigint').execute()
  await sql`update responses set used_at = created_at`.execute(db)
  await schema.createIndex('responses_used').on('responses').column('used_at').execute()
}
