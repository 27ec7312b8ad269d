import type { Kysely } from 'kysely'

/** The server that has a dataset's Hugging Face token in memory: no other one can download it. */
export async function up(db: Kysely<unknown>): Promise<void> {
  await db.schema.alterTable('datasets').addColumn('hub_token_server', 'text').execute()
}
