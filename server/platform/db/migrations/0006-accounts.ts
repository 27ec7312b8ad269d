import type { Kysely } from 'kysely'
import { counted } from '../page.ts'

/** The scopes of the preset `full` before those for keys, members and audit log existed. */
const fullBefore = JSON.stringify([
  'hub:read',
  'datasets:read',
  'datasets:write',
  'tuning:read',
  'tuning:write',
  'deployments:read',
  'deployments:write',
  'inference',
  'profile:read',
])
const fullNow = JSON.stringify([
  ...JSON.parse(fullBefore),
  ...[
    'usage:read',
    'usage:write',
    'webhooks:read',
    'webhooks:write',
    'keys:read',
    'keys:write',
    'members:read',
    'members:write',
    'audit:read',
  ],
])

/** Expiry and revocation of keys, removal of members, suspension of accounts, and the audit log. */
export async function up(db: Kysely<unknown>): Promise<void> {
  const { schema } = db
  await schema.alterTable('accounts').addColumn('suspended_at', 'bigint').execute()
  await schema.alterTable('users').addColumn('removed_at', 'bigint').execute()
  await schema.createIndex('users_account').on('users').columns(['account_id', 'created_at', 'id']).execute()
  for (const column of ['expires_at', 'revoked_at', 'last_used_at'])
    await schema.alterTable('api_keys').addColumn(column, 'bigint').execute()
  await schema.createIndex('api_keys_account').on('api_keys').columns(['account_id', 'created_at', 'id']).execute()
  // Keys with all scopes keep all scopes.
  await (db as Kysely<{ api_keys: { scopes_json: string } }>)
    .updateTable('api_keys')
    .set({ scopes_json: fullNow })
    .where('scopes_json', '=', fullBefore)
    .execute()
  await schema
    .createTable('audit')
    .addColumn('seq', 'integer', counted(db))
    .addColumn('id', 'text', (c) => c.notNull().unique())
    .addColumn('account_id', 'text', (c) => c.notNull().references('accounts.id'))
    .addColumn('created_at', 'bigint', (c) => c.notNull())
    .addColumn('action', 'text', (c) => c.notNull())
    .addColumn('target', 'text', (c) => c.notNull())
    .addColumn('details_json', 'text', (c) => c.notNull())
    .addColumn('kind', 'text', (c) => c.notNull())
    .addColumn('user_id', 'text')
    .addColumn('key_id', 'text')
    .execute()
  await schema.createIndex('audit_account').on('audit').columns(['account_id', 'seq']).execute()
}
