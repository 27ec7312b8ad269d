import { type Kysely, sql } from 'kysely'
import { isPostgres } from '../dialect.ts'

/** Indexes for the filters and orders of lists, and for the jobs that are alive. */
export async function up(db: Kysely<unknown>): Promise<void> {
  const index = (table: string, name: string, columns: string[]) =>
    db.schema.createIndex(`${table}_${name}`).on(table).columns(columns)
  await index('tuning_jobs', 'account_status', ['account_id', 'status', 'created_at', 'id']).execute()
  await index('tuning_jobs', 'status', ['status']).execute()
  await index('tuning_jobs', 'running', ['running_since']).where(sql.ref('running_since'), 'is not', null).execute()
  await index('exports', 'account_status', ['account_id', 'status', 'created_at', 'id']).execute()
  await index('exports', 'account_model', ['account_id', 'model_id', 'created_at', 'id']).execute()
  await index('accounts', 'created', ['created_at', 'id']).execute()
  await index('deployments', 'account', ['account_id', 'created_at', 'id']).execute()
  await index('api_keys', 'user', ['user_id', 'created_at', 'id']).execute()
  // On Postgres a constraint is an index too, and deployments have one with that name.
  const suffix = isPostgres(db) ? 'lower_name' : 'name'
  for (const table of ['datasets', 'tuning_jobs', 'models', 'deployments'])
    await sql`create index ${sql.ref(`${table}_${suffix}`)} on ${sql.table(table)} (account_id, lower(name), id)`.execute(
      db,
    )
}
