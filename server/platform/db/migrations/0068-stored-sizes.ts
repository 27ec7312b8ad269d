import { type Kysely, sql } from 'kysely'

/**
 * The bytes of what accounts store in rows, and of the canonical rows of datasets, for the storage quota. Rows of
 * earlier datasets count as their upload. The indexes have all that a sum reads: the rows themselves are long.
 */
export async function up(db: Kysely<unknown>): Promise<void> {
  const { schema } = db
  const addColumn = (table: string, name: string) =>
    schema
      .alterTable(table)
      .addColumn(name, 'bigint', (column) => column.notNull().defaultTo(0))
      .execute()
  await addColumn('datasets', 'rows_bytes')
  await schema.dropIndex('datasets_account_size').execute()
  await schema
    .createIndex('datasets_account_size')
    .on('datasets')
    .columns(['account_id', 'size_bytes', 'rows_bytes'])
    .execute()
  for (const table of ['responses', 'stored_completions', 'evals', 'evaluations']) {
    await addColumn(table, 'size_bytes')
    await schema.createIndex(`${table}_account_size`).on(table).columns(['account_id', 'size_bytes']).execute()
  }
  await sql`update responses set size_bytes = length(input_json) + length(response_json)`.execute(db)
  await sql`update stored_completions set size_bytes = length(request_json) + length(response_json)`.execute(db)
  await sql`update evals set size_bytes = length(source_config_json) + length(graders_json)`.execute(db)
  await sql`update evaluations set size_bytes = length(graders_json) + length(sampling_json) + coalesce((
    select sum(length(item_json) + length(graders_json) + coalesce(length(output), 0)) from evaluation_answers
    where evaluation_id = evaluations.id), 0)`.execute(db)
}
