import type { Kysely } from 'kysely'

/** Time to first token of streamed answers, requests that failed before an answer, and an index for figures by name. */
export async function up(db: Kysely<unknown>): Promise<void> {
  const { schema } = db
  await schema.alterTable('usage').addColumn('first_token_ms', 'integer').execute()
  await schema.createIndex('usage_model').on('usage').columns(['account_id', 'model', 'created_at']).execute()
  await schema
    .createTable('usage_failures')
    .addColumn('account_id', 'text', (c) => c.notNull())
    .addColumn('model', 'text', (c) => c.notNull())
    .addColumn('minute', 'bigint', (c) => c.notNull())
    .addColumn('kind', 'text', (c) => c.notNull())
    .addColumn('requests', 'integer', (c) => c.notNull())
    .addPrimaryKeyConstraint('usage_failures_key', ['account_id', 'model', 'minute', 'kind'])
    .execute()
  await schema.createIndex('usage_failures_minute').on('usage_failures').column('minute').execute()
}
