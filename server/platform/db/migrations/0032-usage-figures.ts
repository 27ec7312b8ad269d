import type { Kysely } from 'kysely'

/**
 * Figures of requests by account, model name and minute or hour, added up as requests are folded: reading the rows of
 * single requests takes too long. They take the place of the failures alone, and begin with this version.
 */
export async function up(db: Kysely<unknown>): Promise<void> {
  const { schema } = db
  await schema.dropIndex('usage_model').execute()
  await schema.dropTable('usage_failures').execute()
  await schema
    .createTable('usage_figures')
    .addColumn('account_id', 'text', (c) => c.notNull())
    .addColumn('model', 'text', (c) => c.notNull())
    .addColumn('span', 'text', (c) => c.notNull())
    .addColumn('at', 'bigint', (c) => c.notNull())
    .addColumn('requests', 'integer', (c) => c.notNull())
    .addColumn('client_left', 'integer', (c) => c.notNull())
    .addColumn('broken', 'integer', (c) => c.notNull())
    .addColumn('failed', 'integer', (c) => c.notNull())
    .addColumn('refused', 'integer', (c) => c.notNull())
    .addColumn('invalid', 'integer', (c) => c.notNull())
    .addColumn('prompt_tokens', 'bigint', (c) => c.notNull())
    .addColumn('completion_tokens', 'bigint', (c) => c.notNull())
    .addColumn('latency_json', 'text', (c) => c.notNull())
    .addColumn('first_token_json', 'text', (c) => c.notNull())
    .addPrimaryKeyConstraint('usage_figures_key', ['account_id', 'model', 'span', 'at'])
    .execute()
  await schema.createIndex('usage_figures_at').on('usage_figures').column('at').execute()
}
