import type { Kysely } from 'kysely'

/** Deployments that switch once an evaluation allows it, that can be rolled back, and what served when, and why. */
export async function up(db: Kysely<unknown>): Promise<void> {
  const { schema } = db
  await schema.alterTable('deployments').addColumn('former_model', 'text').execute()
  await schema.alterTable('deployments').addColumn('pending_json', 'text').execute()
  await schema
    .createTable('deployment_history')
    .addColumn('id', 'text', (c) => c.primaryKey())
    .addColumn('account_id', 'text', (c) => c.notNull().references('accounts.id'))
    .addColumn('deployment_id', 'text', (c) => c.notNull())
    .addColumn('action', 'text', (c) => c.notNull())
    .addColumn('model', 'text', (c) => c.notNull())
    .addColumn('former_model', 'text')
    .addColumn('evaluation_id', 'text')
    .addColumn('reason', 'text')
    .addColumn('created_at', 'bigint', (c) => c.notNull())
    .execute()
  await schema
    .createIndex('deployment_history_deployment')
    .on('deployment_history')
    .columns(['deployment_id', 'created_at', 'id'])
    .execute()
}
