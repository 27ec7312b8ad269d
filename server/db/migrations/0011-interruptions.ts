import type { Kysely } from 'kysely'

/** How often the service died while an export was made, so that one which takes the machine down is given up. */
export async function up(db: Kysely<unknown>): Promise<void> {
  await db.schema
    .alterTable('exports')
    .addColumn('interruptions', 'integer', (c) => c.notNull().defaultTo(0))
    .execute()
}
