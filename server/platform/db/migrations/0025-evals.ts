import { type Kysely, sql } from 'kysely'

/** Evals of OpenAI's API: the graders that their runs, which are evaluations, have in common. */
export async function up(db: Kysely<unknown>): Promise<void> {
  const { schema } = db
  await schema
    .createTable('evals')
    .addColumn('id', 'text', (c) => c.primaryKey())
    .addColumn('account_id', 'text', (c) => c.notNull().references('accounts.id'))
    .addColumn('name', 'text', (c) => c.notNull())
    .addColumn('metadata_json', 'text', (c) => c.notNull())
    .addColumn('source_config_json', 'text', (c) => c.notNull())
    .addColumn('graders_json', 'text', (c) => c.notNull())
    .addColumn('updated_at', 'bigint', (c) => c.notNull())
    .addColumn('created_at', 'bigint', (c) => c.notNull())
    .execute()
  await schema.createIndex('evals_account').on('evals').columns(['account_id', 'created_at', 'id']).execute()
  await schema
    .alterTable('evaluations')
    .addColumn('eval_id', 'text', (c) => c.references('evals.id'))
    .execute()
  await schema.alterTable('evaluations').addColumn('data_source_json', 'text').execute()
  await schema.createIndex('evaluations_eval').on('evaluations').columns(['eval_id', 'created_at', 'id']).execute()
  await schema.alterTable('evaluation_answers').addColumn('finish_reason', 'text').execute()
  await schema
    .alterTable('evaluation_answers')
    .addColumn('cached_tokens', 'integer', (c) => c.notNull().defaultTo(0))
    .execute()
  // Results have new fields: they are made of the answers again.
  await sql`update evaluations set result_json = null where result_json is not null`.execute(db)
}
