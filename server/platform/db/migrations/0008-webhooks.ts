import type { Kysely } from 'kysely'

/** Webhooks, their deliveries, and each delivery attempt. */
export async function up({ schema }: Kysely<unknown>): Promise<void> {
  await schema
    .createTable('webhooks')
    .addColumn('id', 'text', (c) => c.primaryKey())
    .addColumn('account_id', 'text', (c) => c.notNull().references('accounts.id'))
    .addColumn('url', 'text', (c) => c.notNull())
    .addColumn('events_json', 'text', (c) => c.notNull())
    .addColumn('secrets_json', 'text', (c) => c.notNull())
    .addColumn('disabled_at', 'bigint')
    .addColumn('disabled_reason', 'text')
    .addColumn('failures', 'integer', (c) => c.notNull().defaultTo(0))
    .addColumn('failing_since', 'bigint')
    .addColumn('slowed_until', 'bigint')
    .addColumn('created_at', 'bigint', (c) => c.notNull())
    .addColumn('updated_at', 'bigint', (c) => c.notNull())
    .execute()
  await schema.createIndex('webhooks_account').on('webhooks').columns(['account_id', 'created_at', 'id']).execute()
  await schema
    .createTable('webhook_deliveries')
    .addColumn('id', 'text', (c) => c.primaryKey())
    .addColumn('account_id', 'text', (c) => c.notNull())
    .addColumn('webhook_id', 'text', (c) => c.notNull().references('webhooks.id').onDelete('cascade'))
    .addColumn('event_id', 'text', (c) => c.notNull().references('events.id'))
    .addColumn('type', 'text', (c) => c.notNull())
    .addColumn('status', 'text', (c) => c.notNull())
    .addColumn('attempts', 'integer', (c) => c.notNull().defaultTo(0))
    .addColumn('next_attempt_at', 'bigint')
    .addColumn('lease_until', 'bigint')
    .addColumn('created_at', 'bigint', (c) => c.notNull())
    .execute()
  const index = (
    name: string,
    columns: ('webhook_id' | 'created_at' | 'id' | 'attempts' | 'next_attempt_at' | 'lease_until')[],
  ) => schema.createIndex(`webhook_deliveries_${name}`).on('webhook_deliveries').columns(columns)
  await index('webhook', ['webhook_id', 'created_at', 'id']).execute()
  // Indexes for: webhooks with due deliveries; a webhook's next delivery; its deliveries in flight.
  await index('due', ['next_attempt_at', 'webhook_id']).where('next_attempt_at', 'is not', null).execute()
  await index('next', ['webhook_id', 'attempts', 'next_attempt_at']).where('next_attempt_at', 'is not', null).execute()
  await index('leased', ['webhook_id', 'lease_until']).where('lease_until', 'is not', null).execute()
  await schema
    .createTable('webhook_attempts')
    .addColumn('delivery_id', 'text', (c) => c.notNull().references('webhook_deliveries.id').onDelete('cascade'))
    .addColumn('number', 'integer', (c) => c.notNull())
    .addColumn('started_at', 'bigint', (c) => c.notNull())
    .addColumn('duration_ms', 'integer', (c) => c.notNull())
    .addColumn('response_status', 'integer')
    .addColumn('response_body', 'text')
    .addColumn('error_json', 'text')
    .addPrimaryKeyConstraint('webhook_attempts_key', ['delivery_id', 'number'])
    .execute()
}
