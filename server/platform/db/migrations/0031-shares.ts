import type { Kysely } from 'kysely'

/** Links to the page of a model, and how often each was used in a UTC day. */
export async function up(db: Kysely<unknown>): Promise<void> {
  const { schema } = db
  await schema
    .createTable('shares')
    .addColumn('id', 'text', (c) => c.primaryKey())
    .addColumn('account_id', 'text', (c) => c.notNull().references('accounts.id'))
    .addColumn('model_id', 'text', (c) => c.notNull())
    .addColumn('evaluation_id', 'text')
    .addColumn('hash', 'text', (c) => c.notNull().unique())
    .addColumn('requests_per_day', 'integer', (c) => c.notNull())
    .addColumn('max_tokens', 'integer', (c) => c.notNull())
    .addColumn('expires_at', 'bigint')
    .addColumn('revoked_at', 'bigint')
    .addColumn('created_at', 'bigint', (c) => c.notNull())
    .execute()
  await schema.createIndex('shares_account').on('shares').columns(['account_id', 'model_id', 'created_at']).execute()
  await schema
    .createTable('share_days')
    .addColumn('share_id', 'text', (c) => c.notNull().references('shares.id'))
    .addColumn('day', 'bigint', (c) => c.notNull())
    .addColumn('requests', 'integer', (c) => c.notNull())
    .addPrimaryKeyConstraint('share_days_key', ['share_id', 'day'])
    .execute()
}
