import type { Kysely } from 'kysely'

/** The scopes of a key with full access before exports existed. */
const everything = [
  ...[
    'hub:read',
    'datasets:read',
    'datasets:write',
    'tuning:read',
    'tuning:write',
    'deployments:read',
    'deployments:write',
    'inference',
  ],
  ...[
    'profile:read',
    'usage:read',
    'usage:write',
    'webhooks:read',
    'webhooks:write',
    'keys:read',
    'keys:write',
    'members:read',
    'members:write',
  ],
  'audit:read',
]

/** What is made of models to be taken away, and what is told of it while it is made. */
export async function up(db: Kysely<unknown>): Promise<void> {
  const { schema } = db
  await schema
    .createTable('exports')
    .addColumn('id', 'text', (c) => c.primaryKey())
    .addColumn('account_id', 'text', (c) => c.notNull().references('accounts.id'))
    // No foreign key: an export outlives its model.
    .addColumn('model_id', 'text', (c) => c.notNull())
    .addColumn('format', 'text', (c) => c.notNull())
    .addColumn('quantization', 'text')
    .addColumn('merge', 'integer', (c) => c.notNull())
    .addColumn('archive', 'text')
    .addColumn('push_to', 'text')
    .addColumn('status', 'text', (c) => c.notNull())
    .addColumn('stage', 'text')
    .addColumn('progress', 'real', (c) => c.notNull().defaultTo(0))
    .addColumn('files_json', 'text', (c) => c.notNull())
    .addColumn('check_json', 'text')
    .addColumn('push_json', 'text')
    .addColumn('error_json', 'text')
    .addColumn('crashes', 'integer', (c) => c.notNull().defaultTo(0))
    .addColumn('created_at', 'bigint', (c) => c.notNull())
    .addColumn('started_at', 'bigint')
    .addColumn('finished_at', 'bigint')
    .addColumn('expires_at', 'bigint')
    .execute()
  await schema.createIndex('exports_account').on('exports').columns(['account_id', 'created_at', 'id']).execute()
  await schema
    .createIndex('exports_expiry')
    .on('exports')
    .column('expires_at')
    .where('expires_at', 'is not', null)
    .execute()
  await schema
    .createTable('export_events')
    .addColumn('export_id', 'text', (c) => c.notNull().references('exports.id').onDelete('cascade'))
    .addColumn('seq', 'integer', (c) => c.notNull())
    .addColumn('type', 'text', (c) => c.notNull())
    .addColumn('message', 'text', (c) => c.notNull())
    .addColumn('data_json', 'text')
    .addColumn('created_at', 'bigint', (c) => c.notNull())
    .addPrimaryKeyConstraint('export_events_key', ['export_id', 'seq'])
    .execute()
  // Hub repositories that exports created, in lower case as the hub ignores case. Other accounts must not write to
  // them.
  await schema
    .createTable('export_repositories')
    .addColumn('repository', 'text', (c) => c.primaryKey())
    .addColumn('account_id', 'text', (c) => c.notNull().references('accounts.id'))
    .execute()
  // Keys with all scopes keep all scopes.
  const keys = db as Kysely<{ api_keys: { id: string; scopes_json: string } }>
  for (const { id, scopes_json } of await keys.selectFrom('api_keys').select(['id', 'scopes_json']).execute()) {
    const had: string[] = JSON.parse(scopes_json)
    if (everything.some((scope) => !had.includes(scope))) continue
    await keys
      .updateTable('api_keys')
      .set({ scopes_json: JSON.stringify([...had, 'exports:read', 'exports:write']) })
      .where('id', '=', id)
      .execute()
  }
}
