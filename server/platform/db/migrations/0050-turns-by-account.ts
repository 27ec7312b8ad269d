import { type Kysely, sql } from 'kysely'

/** The table with the account of each kind of work. */
const owners = {
  tuning: ['tuning_jobs', 'id'],
  export: ['exports', 'id'],
  dataset: ['datasets', 'id'],
  batch: ['batches', 'id'],
  evaluation: ['evaluations', 'id'],
  deployment: ['deployments', 'id'],
  model_download: ['model_downloads', 'model_id'],
} as const

/** The accounts of queue entries, which take turns, and what their order depends on. */
export async function up(db: Kysely<unknown>): Promise<void> {
  const table = () => db.schema.alterTable('queue_entries')
  await table()
    .addColumn('account_id', 'text', (c) => c.notNull().defaultTo(''))
    .execute()
  await table()
    .addColumn('place', 'bigint', (c) => c.notNull().defaultTo(0))
    .execute()
  await table()
    .addColumn('turn_until', 'bigint', (c) => c.notNull().defaultTo(0))
    .execute()
  await table().addColumn('claimed_at', 'bigint').execute()
  await sql`update queue_entries set place = created_at`.execute(db)
  for (const [kind, [name, id]] of Object.entries(owners)) {
    const account = sql`select account_id from ${sql.table(name)} where ${sql.ref(`${name}.${id}`)} = queue_entries.ref`
    await sql`update queue_entries set account_id = coalesce((${account}), '') where kind = ${kind}`.execute(db)
  }
  await sql`create index queue_entries_places on queue_entries (kind, account_id, place, id)
    where status in ('waiting', 'leased')`.execute(db)
  await sql`create index queue_entries_leases on queue_entries (kind, account_id) where status = 'leased'`.execute(db)
  await sql`create index queue_entries_served on queue_entries (kind, account_id, claimed_at)
    where claimed_at is not null`.execute(db)
}
