import { type Kysely, sql } from 'kysely'

/** Datasets are validated by queue work after the upload; table files also get a canonical form. */
export async function up(db: Kysely<unknown>): Promise<void> {
  const schema = db.schema
  await schema
    .alterTable('datasets')
    .addColumn('status', 'text', (c) => c.notNull().defaultTo('ready'))
    .execute()
  await schema.alterTable('datasets').addColumn('rows_sha256', 'text').execute()
  await sql`update datasets set rows_sha256 = sha256`.execute(db)
  await schema
    .createTable('dataset_tokens')
    .addColumn('dataset_id', 'text', (c) => c.notNull())
    .addColumn('base_model_id', 'text', (c) => c.notNull())
    .addColumn('found_json', 'text', (c) => c.notNull())
    .addPrimaryKeyConstraint('dataset_tokens_key', ['dataset_id', 'base_model_id'])
    .execute()
}
