import type { Kysely } from 'kysely'

/** Counts server crashes during an export, so that one that brings the machine down is given up. */
export async function up(db: Kysely<unknown>): Promise<void> {
  await db.schema
    .alterTable('exports')
    .addColumn('interruptions', 'integer', (c) => c.notNull().defaultTo(0))
    .execute()
}
