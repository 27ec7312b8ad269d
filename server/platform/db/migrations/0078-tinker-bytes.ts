import type { Kysely } from 'kysely'

/** What the states of runs and weights without a name take: it counts as what the account stores. */
export async function up({ schema }: Kysely<unknown>): Promise<void> {
  for (const table of ['tinker_runs', 'tinker_samplers'])
    await schema
      .alterTable(table)
      .addColumn('size_bytes', 'bigint', (column) => column.notNull().defaultTo(0))
      .execute()
}
