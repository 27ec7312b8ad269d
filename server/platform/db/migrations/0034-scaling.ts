import type { Kysely } from 'kysely'

/** Deployments that scale, and each change of their number of replicas. */
export async function up(db: Kysely<unknown>): Promise<void> {
  const { schema } = db
  await schema
    .createTable('deployment_scaling')
    .addColumn('deployment_id', 'text', (c) => c.primaryKey())
    .addColumn('policy_json', 'text', (c) => c.notNull())
    .addColumn('instance_type', 'text', (c) => c.notNull())
    .addColumn('updated_at', 'bigint', (c) => c.notNull())
    .execute()
  await schema
    .createTable('scaling_decisions')
    .addColumn('id', 'text', (c) => c.primaryKey())
    .addColumn('deployment_id', 'text', (c) => c.notNull())
    .addColumn('server', 'text', (c) => c.notNull())
    .addColumn('from_replicas', 'integer', (c) => c.notNull())
    .addColumn('to_replicas', 'integer', (c) => c.notNull())
    .addColumn('in_flight', 'integer', (c) => c.notNull())
    .addColumn('waiting', 'integer', (c) => c.notNull())
    .addColumn('reason', 'text', (c) => c.notNull())
    .addColumn('created_at', 'bigint', (c) => c.notNull())
    .execute()
  await schema
    .createIndex('scaling_decisions_deployment')
    .on('scaling_decisions')
    .columns(['deployment_id', 'created_at', 'id'])
    .execute()
}
