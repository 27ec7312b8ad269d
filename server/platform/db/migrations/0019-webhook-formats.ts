import type { Kysely } from 'kysely'

/** How a webhook's events are written. */
export async function up(db: Kysely<unknown>): Promise<void> {
  await db.schema
    .alterTable('webhooks')
    .addColumn('format', 'text', (c) => c.notNull().defaultTo('tunery'))
    .execute()
}
