import { type Kysely, sql } from 'kysely'

/** Sessions of the dashboard, and how people sign in. The first owner of the installation is its operator. */
export async function up(db: Kysely<unknown>): Promise<void> {
  const { schema } = db
  await schema
    .alterTable('users')
    .addColumn('operator', 'integer', (c) => c.notNull().defaultTo(0))
    .execute()
  await sql`update users set operator = 1 where id =
    (select id from users where role = 'owner' and removed_at is null order by created_at limit 1)`.execute(db)
  await schema.createIndex('users_email').on('users').column('email').execute()
  await schema
    .createTable('passwords')
    .addColumn('user_id', 'text', (c) => c.primaryKey().references('users.id'))
    .addColumn('hash', 'text', (c) => c.notNull())
    .addColumn('set_at', 'bigint', (c) => c.notNull())
    .execute()
  await schema
    .createTable('sessions')
    .addColumn('id', 'text', (c) => c.primaryKey())
    .addColumn('account_id', 'text', (c) => c.notNull().references('accounts.id'))
    .addColumn('user_id', 'text', (c) => c.notNull().references('users.id'))
    .addColumn('hash', 'text', (c) => c.notNull().unique())
    .addColumn('begun_by', 'text', (c) => c.notNull())
    .addColumn('user_agent', 'text', (c) => c.notNull())
    .addColumn('address', 'text', (c) => c.notNull())
    .addColumn('created_at', 'bigint', (c) => c.notNull())
    .addColumn('last_used_at', 'bigint', (c) => c.notNull())
    .execute()
  await schema.createIndex('sessions_user').on('sessions').columns(['user_id', 'created_at', 'id']).execute()
  await schema
    .createTable('sign_in_tokens')
    .addColumn('id', 'text', (c) => c.primaryKey())
    .addColumn('kind', 'text', (c) => c.notNull())
    .addColumn('hash', 'text', (c) => c.notNull().unique())
    .addColumn('account_id', 'text')
    .addColumn('user_id', 'text')
    .addColumn('invited_by', 'text')
    .addColumn('created_at', 'bigint', (c) => c.notNull())
    .addColumn('expires_at', 'bigint', (c) => c.notNull())
    .execute()
  await schema
    .createIndex('sign_in_tokens_account')
    .on('sign_in_tokens')
    .columns(['account_id', 'created_at', 'id'])
    .execute()
  await schema
    .createTable('passkeys')
    .addColumn('id', 'text', (c) => c.primaryKey())
    .addColumn('user_id', 'text', (c) => c.notNull().references('users.id'))
    .addColumn('credential_id', 'text', (c) => c.notNull().unique())
    .addColumn('name', 'text', (c) => c.notNull())
    .addColumn('public_key', 'text', (c) => c.notNull())
    .addColumn('counter', 'bigint', (c) => c.notNull())
    .addColumn('transports_json', 'text', (c) => c.notNull())
    .addColumn('created_at', 'bigint', (c) => c.notNull())
    .addColumn('last_used_at', 'bigint')
    .execute()
  await schema.createIndex('passkeys_user').on('passkeys').column('user_id').execute()
  await schema
    .createTable('oidc_identities')
    .addColumn('issuer', 'text', (c) => c.notNull())
    .addColumn('subject', 'text', (c) => c.notNull())
    .addColumn('user_id', 'text', (c) => c.notNull().references('users.id'))
    .addColumn('created_at', 'bigint', (c) => c.notNull())
    .addPrimaryKeyConstraint('oidc_identities_key', ['issuer', 'subject'])
    .execute()
}
