import { type Kysely, sql } from 'kysely'

/**
 * The form of a dataset's rows: 0 as earlier versions wrote them, 1 canonical. Rows of the earlier form are converted
 * when they are first used; checkpoints know them by the hash that they had (`earlier_rows_sha256`). `source_name`: the
 * file of an upload that is not named after its format. `columns_json`: the uploader's names of the columns.
 */
export async function up(db: Kysely<unknown>): Promise<void> {
  const { schema } = db
  await schema
    .alterTable('datasets')
    .addColumn('rows_form', 'integer', (column) => column.notNull().defaultTo(0))
    .execute()
  for (const name of ['earlier_rows_sha256', 'source_name', 'columns_json'])
    await schema.alterTable('datasets').addColumn(name, 'text').execute()
  await sql`update datasets set source_name = id || '.uploaded.jsonl'
    where format = 'jsonl' and (rows_sha256 is null or rows_sha256 <> sha256)`.execute(db)
}
