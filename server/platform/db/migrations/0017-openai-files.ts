import { type Kysely, sql } from 'kysely'

/**
 * For OpenAI's API: files that are no datasets, uploads in parts, what its jobs were asked for, and the models' names
 * there.
 */
export async function up(db: Kysely<unknown>): Promise<void> {
  const { schema } = db
  await schema
    .createTable('files')
    .addColumn('id', 'text', (c) => c.primaryKey())
    .addColumn('account_id', 'text', (c) => c.notNull().references('accounts.id'))
    .addColumn('filename', 'text', (c) => c.notNull())
    .addColumn('purpose', 'text', (c) => c.notNull())
    .addColumn('size_bytes', 'bigint', (c) => c.notNull())
    .addColumn('sha256', 'text', (c) => c.notNull())
    .addColumn('expires_at', 'bigint')
    .addColumn('created_at', 'bigint', (c) => c.notNull())
    .execute()
  await schema.createIndex('files_account').on('files').columns(['account_id', 'created_at', 'id']).execute()
  await schema.createIndex('files_expiry').on('files').column('expires_at').execute()
  await schema
    .createTable('uploads')
    .addColumn('id', 'text', (c) => c.primaryKey())
    .addColumn('account_id', 'text', (c) => c.notNull().references('accounts.id'))
    .addColumn('filename', 'text', (c) => c.notNull())
    .addColumn('purpose', 'text', (c) => c.notNull())
    .addColumn('size_bytes', 'bigint', (c) => c.notNull())
    .addColumn('file_seconds', 'integer')
    .addColumn('status', 'text', (c) => c.notNull())
    .addColumn('file_id', 'text')
    .addColumn('expires_at', 'bigint', (c) => c.notNull())
    .addColumn('created_at', 'bigint', (c) => c.notNull())
    .execute()
  await schema.createIndex('uploads_status').on('uploads').columns(['status', 'expires_at']).execute()
  await schema
    .createTable('upload_parts')
    .addColumn('id', 'text', (c) => c.primaryKey())
    .addColumn('upload_id', 'text', (c) => c.notNull().references('uploads.id').onDelete('cascade'))
    .addColumn('size_bytes', 'bigint', (c) => c.notNull())
    .addColumn('created_at', 'bigint', (c) => c.notNull())
    .execute()
  await schema.createIndex('upload_parts_upload').on('upload_parts').column('upload_id').execute()
  await schema.alterTable('tuning_jobs').addColumn('openai_json', 'text').execute()
  await schema.alterTable('tuning_jobs').addColumn('result_file_id', 'text').execute()
  await schema.alterTable('models').addColumn('ft_name', 'text').execute()
  await sql`update models set ft_name = 'ft:' || base_model_id || ':' || account_id || '::' || id`.execute(db)
  await schema.createIndex('models_ft_name').on('models').columns(['account_id', 'ft_name']).execute()
}
