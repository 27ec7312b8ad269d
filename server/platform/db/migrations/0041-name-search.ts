import { type Kysely, sql } from 'kysely'
import { isPostgres } from '../dialect.ts'

const tables = ['datasets', 'tuning_jobs', 'models', 'deployments']

/** Indexes that find part of a name in lists (server/platform/db/name-search.ts). */
export async function up(db: Kysely<unknown>): Promise<void> {
  await (isPostgres(db) ? upPostgres(db) : upSqlite(db))
}

/** Trigrams of the names, under their account. Without the extensions, lists are scanned. */
async function upPostgres(db: Kysely<unknown>): Promise<void> {
  // A million rows take seconds, which a slow disk multiplies.
  await sql`set local statement_timeout = 0`.execute(db)
  // A role without the right, or a server without the extension, is no reason not to start.
  await sql`
    do $$ begin
      create extension if not exists pg_trgm;
      create extension if not exists btree_gin;
    exception when others then
      raise notice 'names are not indexed: %', sqlerrm;
    end $$
  `.execute(db)
  // An administrator may have created them in a schema that is not in the search path.
  const { rows } = await sql<{ schema: string }>`
    select nspname as schema from pg_opclass join pg_namespace on pg_namespace.oid = opcnamespace
    where opcname = 'gin_trgm_ops' and has_schema_privilege(nspname, 'usage') and exists (
      select from pg_opclass join pg_am on pg_am.oid = opcmethod
      where amname = 'gin' and opcdefault and opcintype = 'text'::regtype
    )
  `.execute(db)
  const [found] = rows
  if (!found) return
  // Without fastupdate: each search would read the list of pending entries.
  for (const table of tables)
    await sql`
      create index ${sql.ref(`${table}_name_trigrams`)} on ${sql.table(table)}
      using gin (account_id, lower(name) ${sql.table(`${found.schema}.gin_trgm_ops`)}) with (fastupdate = off)
    `.execute(db)
}

/**
 * A trigram index of all names. Its rows are numbered so that those of one kind and account, a scope, are a range: key
 * = scope * 2^32 + a number in it. A search of one account reads no entries of others.
 */
async function upSqlite(db: Kysely<unknown>): Promise<void> {
  const { schema } = db
  await schema
    .createTable('name_scopes')
    .addColumn('scope', 'integer', (c) => c.primaryKey())
    .addColumn('kind', 'text', (c) => c.notNull())
    .addColumn('account_id', 'text', (c) => c.notNull())
    .addUniqueConstraint('name_scopes_account', ['kind', 'account_id'])
    .execute()
  await schema
    .createTable('name_keys')
    .addColumn('key', 'integer', (c) => c.primaryKey())
    .addColumn('id', 'text', (c) => c.notNull())
    .execute()
  await sql`
    create virtual table name_trigrams
    using fts5(name, content = '', columnsize = 0, detail = none, tokenize = 'trigram case_sensitive 1')
  `.execute(db)
  // What is deleted is overwritten here too.
  await sql`insert into name_trigrams (name_trigrams, rank) values ('secure-delete', 1)`.execute(db)

  for (const table of tables) {
    const from = sql.table(table)
    await sql`
      insert into name_scopes (kind, account_id)
      select ${table}, account_id from ${from} group by account_id order by account_id
    `.execute(db)
    // In the order of the index of names, so that the rows themselves are not read.
    const keyed = sql`
      select (scope << 32) + row_number() over (partition by rows.account_id order by lower(name), id) as key, id,
        lower(name) as name
      from ${from} as rows join name_scopes on name_scopes.kind = ${table} and name_scopes.account_id = rows.account_id
      order by rows.account_id, lower(name), id
    `
    await sql`insert into name_keys (key, id) select key, id from (${keyed})`.execute(db)
    await sql`insert into name_trigrams (rowid, name) select key, name from (${keyed})`.execute(db)
  }
  await schema.createIndex('name_keys_id').on('name_keys').column('id').execute()
  for (const table of tables) await followChanges(db, table)
}

/** Triggers keep the index right, whoever writes. The index forgets a name by what it was. */
async function followChanges(db: Kysely<unknown>, table: string): Promise<void> {
  const trigger = (name: string, event: string, body: string) =>
    sql.raw(`create trigger ${table}_name_${name} after ${event} begin ${body} end`).execute(db)
  const keyOf = (row: 'old' | 'new') => `
    from name_keys where id = ${row}.id and key >> 32 =
      (select scope from name_scopes where kind = '${table}' and account_id = ${row}.account_id)`
  const add = `insert into name_trigrams (rowid, name) select key, lower(new.name) ${keyOf('new')};`
  const forget = `
    insert into name_trigrams (name_trigrams, rowid, name) select 'delete', key, lower(old.name) ${keyOf('old')};`
  await trigger(
    'inserted',
    `insert on ${table}`,
    `insert into name_scopes (kind, account_id) values ('${table}', new.account_id) on conflict do nothing;
    insert into name_keys (key, id)
      select max(scope << 32, coalesce((select max(key) from name_keys where key < (scope + 1) << 32), 0)) + 1, new.id
      from name_scopes where kind = '${table}' and account_id = new.account_id;
    ${add}`,
  )
  await trigger('changed', `update of name on ${table} when old.name is not new.name`, `${forget} ${add}`)
  await trigger(
    'deleted',
    `delete on ${table}`,
    `${forget} delete from name_keys where key = (select key ${keyOf('old')});`,
  )
}
