import { type Kysely, sql } from 'kysely'

/** The trace in which a job was created, and an index of the jobs that have not ended, for the metrics. */
export async function up(db: Kysely<unknown>): Promise<void> {
  await db.schema.alterTable('tuning_jobs').addColumn('traceparent', 'text').execute()
  await sql`create index tuning_jobs_unfinished on tuning_jobs (status, paused) where status in ('queued', 'running')`.execute(
    db,
  )
}
