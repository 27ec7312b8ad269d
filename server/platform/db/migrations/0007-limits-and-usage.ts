import { type Kysely, sql } from 'kysely'

/**
 * Requests and usage per UTC day, usage of jobs, and usage thresholds. Days are the unix milliseconds of their start.
 */
export async function up(db: Kysely<unknown>): Promise<void> {
  const { schema } = db
  await schema
    .createTable('day_counts')
    .addColumn('account_id', 'text', (c) => c.notNull().references('accounts.id'))
    .addColumn('day', 'bigint', (c) => c.notNull())
    .addColumn('requests', 'bigint', (c) => c.notNull())
    .addPrimaryKeyConstraint('day_counts_key', ['account_id', 'day'])
    .execute()

  await schema
    .alterTable('usage')
    .addColumn('trained_tokens', 'bigint', (c) => c.notNull().defaultTo(0))
    .execute()
  await schema
    .alterTable('usage')
    .addColumn('cost', 'double precision', (c) => c.notNull().defaultTo(0))
    .execute()
  await schema
    .createTable('usage_days')
    .addColumn('account_id', 'text', (c) => c.notNull())
    .addColumn('day', 'bigint', (c) => c.notNull())
    .addColumn('model', 'text', (c) => c.notNull())
    .addColumn('model_id', 'text', (c) => c.notNull())
    .addColumn('key_id', 'text', (c) => c.notNull())
    .addColumn('kind', 'text', (c) => c.notNull())
    .addColumn('requests', 'bigint', (c) => c.notNull())
    .addColumn('prompt_tokens', 'bigint', (c) => c.notNull())
    .addColumn('completion_tokens', 'bigint', (c) => c.notNull())
    .addColumn('cached_tokens', 'bigint', (c) => c.notNull())
    .addColumn('trained_tokens', 'bigint', (c) => c.notNull())
    .addColumn('duration_ms', 'bigint', (c) => c.notNull())
    .addColumn('cost', 'double precision', (c) => c.notNull())
    .addPrimaryKeyConstraint('usage_days_key', ['account_id', 'day', 'model', 'model_id', 'key_id', 'kind'])
    .execute()
  await schema.createIndex('usage_created').on('usage').column('created_at').execute()
  await sql`insert into usage_days
    select account_id, created_at - created_at % 86400000, model, model_id, key_id, kind,
      count(*), sum(prompt_tokens), sum(completion_tokens), sum(cached_tokens), 0, sum(duration_ms), 0
    from usage group by 1, 2, 3, 4, 5, 6`.execute(db)

  await schema
    .alterTable('tuning_jobs')
    .addColumn('key_id', 'text', (c) => c.notNull().defaultTo(''))
    .execute()
  await schema
    .alterTable('tuning_jobs')
    .addColumn('ran_ms', 'bigint', (c) => c.notNull().defaultTo(0))
    .execute()
  await schema.alterTable('tuning_jobs').addColumn('running_since', 'bigint').execute()

  await schema
    .createTable('usage_thresholds')
    .addColumn('account_id', 'text', (c) => c.primaryKey().references('accounts.id'))
    .addColumn('requests_per_day', 'bigint')
    .addColumn('tokens_per_month', 'bigint')
    .addColumn('cost_per_month', 'double precision')
    .addColumn('percents_json', 'text', (c) => c.notNull())
    .execute()
  await schema
    .createTable('usage_notices')
    .addColumn('account_id', 'text', (c) => c.notNull().references('accounts.id'))
    .addColumn('metric', 'text', (c) => c.notNull())
    .addColumn('period', 'bigint', (c) => c.notNull())
    .addColumn('bound', 'double precision', (c) => c.notNull())
    .addColumn('percent', 'integer', (c) => c.notNull())
    .addPrimaryKeyConstraint('usage_notices_key', ['account_id', 'metric', 'period', 'bound', 'percent'])
    .execute()
}
