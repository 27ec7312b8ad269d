// Runs of trainings in a cluster, and what their trainers have reported, in the database.
import type { Db, Queryable, Trx } from '../../../platform/db/open.ts'
import type { NewRow, Row } from '../../../platform/db/schema.ts'

export type Run = Row<'training_runs'>
type ReportedLine = { type: string; message: string; data?: Record<string, unknown> | undefined }

/** Lines that later workers need too: they are replayed until the run ends. All others go when they are recorded. */
const replayed = ['result', 'error', 'exit']

const of = ({ job_id, attempt }: Pick<Run, 'job_id' | 'attempt'>) => ({ job_id, attempt })

export const find = (db: Queryable, job_id: string, attempt: number) =>
  db
    .selectFrom('training_runs')
    .selectAll()
    .where('job_id', '=', job_id)
    .where('attempt', '=', attempt)
    .executeTakeFirst()

/** The run of a job that has not ended. */
export const live = (db: Queryable, job_id: string) =>
  db
    .selectFrom('training_runs')
    .selectAll()
    .where('job_id', '=', job_id)
    .where('ended_at', 'is', null)
    .orderBy('attempt', 'desc')
    .limit(1)
    .executeTakeFirst()

export const insert = (trx: Trx, run: NewRow<'training_runs'>) => trx.insertInto('training_runs').values(run).execute()

export const update = (db: Queryable, run: Pick<Run, 'job_id' | 'attempt'>, values: Partial<Run>) =>
  db
    .updateTable('training_runs')
    .set(values)
    .where('job_id', '=', run.job_id)
    .where('attempt', '=', run.attempt)
    .execute()

/**
 * Stores lines numbered from `first` on, each once: those that are here already are skipped. Returns the number of the
 * last line that is here; undefined if the run has ended. Lines beyond a gap are not stored.
 */
export function receive(db: Db, run: Run, first: number, lines: ReportedLine[], time: number) {
  return db.transaction().execute(async (trx) => {
    const current = await find(trx, run.job_id, run.attempt)
    if (!current || current.ended_at !== null) return undefined
    const { received } = current
    if (first > received + 1) return received
    const fresh = lines.slice(received + 1 - first)
    const last = received + fresh.length
    for (const [index, { type, message, data }] of fresh.entries())
      await trx
        .insertInto('training_run_lines')
        .values({ ...of(run), seq: received + 1 + index, type, line_json: JSON.stringify({ type, message, data }) })
        .execute()
    await update(trx, run, { received: last, seen_at: time })
    return last
  })
}

/** Lines after `seq` that no worker has recorded, and those that are replayed, in order. */
export const linesAfter = (db: Db, run: Run, seq: number, limit: number) =>
  db
    .selectFrom('training_run_lines')
    .select(['seq', 'type', 'line_json'])
    .where('job_id', '=', run.job_id)
    .where('attempt', '=', run.attempt)
    .where('seq', '>', seq)
    .orderBy('seq')
    .limit(limit)
    .execute()

/** In the transaction that records line `seq`: no worker records it again. */
export async function markRecorded(trx: Trx, run: Run, seq: number): Promise<void> {
  await update(trx, run, { recorded: seq })
  await trx
    .deleteFrom('training_run_lines')
    .where('job_id', '=', run.job_id)
    .where('attempt', '=', run.attempt)
    .where('seq', '<=', seq)
    .where('type', 'not in', replayed)
    .execute()
}

/** From now on nothing is accepted from the run, and the cluster is to stop it. */
export async function end(db: Db, run: Pick<Run, 'job_id' | 'attempt'>, time: number): Promise<void> {
  await db.transaction().execute(async (trx) => {
    await trx
      .deleteFrom('training_run_lines')
      .where('job_id', '=', run.job_id)
      .where('attempt', '=', run.attempt)
      .execute()
    await trx
      .updateTable('training_runs')
      .set({ ended_at: time })
      .where('job_id', '=', run.job_id)
      .where('attempt', '=', run.attempt)
      .where('ended_at', 'is', null)
      .execute()
  })
}

/** Runs that the cluster may still have, with the status of their job. */
export const uncleared = (db: Db) =>
  db
    .selectFrom('training_runs')
    .leftJoin('tuning_jobs', 'tuning_jobs.id', 'training_runs.job_id')
    .selectAll('training_runs')
    .select(['tuning_jobs.status', 'tuning_jobs.paused'])
    .where('training_runs.cleared_at', 'is', null)
    .execute()

export const removeClearedBefore = (db: Db, time: number) =>
  db.deleteFrom('training_runs').where('cleared_at', '<', time).execute()
