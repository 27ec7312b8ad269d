import type { Kysely } from 'kysely'

/** Answers that accounts keep, with what was asked. */
export async function up(db: Kysely<unknown>): Promise<void> {
  const { schema } = db
  await schema
    .createTable('stored_completions')
    .addColumn('id', 'text', (c) => c.notNull())
    .addColumn('account_id', 'text', (c) => c.notNull().references('accounts.id'))
    .addColumn('model', 'text', (c) => c.notNull())
    .addColumn('metadata_json', 'text', (c) => c.notNull())
    .addColumn('request_json', 'text', (c) => c.notNull())
    .addColumn('response_json', 'text', (c) => c.notNull())
    .addColumn('expires_at', 'bigint', (c) => c.notNull())
    .addColumn('created_at', 'bigint', (c) => c.notNull())
    .addPrimaryKeyConstraint('stored_completions_key', ['account_id', 'id'])
    .execute()
  await schema
    .createIndex('stored_completions_account')
    .on('stored_completions')
    .columns(['account_id', 'created_at', 'id'])
    .execute()
  await schema.createIndex('stored_completions_expiry').on('stored_completions').column('expires_at').execute()
}
