import type { Kysely } from 'kysely'

/**
 * Allows models that are full checkpoints, of any step, or imported; jobs can pause or have a validation dataset.
 * SQLite can change a column's constraint only in a new table.
 */
export async function up(db: Kysely<unknown>): Promise<void> {
  const schema = db.schema
  await schema
    .createTable('models_new')
    .addColumn('id', 'text', (c) => c.primaryKey())
    .addColumn('account_id', 'text', (c) => c.notNull().references('accounts.id'))
    .addColumn('base_model_id', 'text', (c) => c.notNull())
    .addColumn('kind', 'text', (c) => c.notNull())
    .addColumn('parent_model_id', 'text')
    .addColumn('job_id', 'text', (c) => c.references('tuning_jobs.id'))
    .addColumn('method', 'text', (c) => c.notNull())
    .addColumn('step', 'integer')
    .addColumn('validation_loss', 'double precision')
    .addColumn('gguf_sha256', 'text', (c) => c.notNull())
    .addColumn('size_bytes', 'bigint', (c) => c.notNull())
    .addColumn('created_at', 'bigint', (c) => c.notNull())
    .execute()
  const columns = ['id', 'account_id', 'base_model_id', 'job_id', 'method', 'size_bytes', 'created_at'] as const
  const old = (db as Kysely<{ models: Record<(typeof columns)[number] | 'adapter_sha256', string> }>).selectFrom(
    'models',
  )
  await (db as Kysely<{ models_new: Record<string, string> }>)
    .insertInto('models_new')
    .columns([...columns, 'gguf_sha256', 'kind'])
    .expression(() => old.select([...columns, 'adapter_sha256', (eb) => eb.val('adapter').as('kind')]) as never)
    .execute()
  await schema.dropTable('models').execute()
  await schema.alterTable('models_new').renameTo('models').execute()
  await schema.createIndex('models_job').on('models').column('job_id').execute()
  await schema.alterTable('tuning_jobs').addColumn('validation_dataset_id', 'text').execute()
  await schema
    .alterTable('tuning_jobs')
    .addColumn('paused', 'integer', (c) => c.notNull().defaultTo(0))
    .execute()
  await schema.createIndex('models_account').on('models').columns(['account_id', 'created_at', 'id']).execute()
}
