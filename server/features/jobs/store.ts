import { sql } from 'kysely'
import type { JobQuery } from '../../../contract/fine-tuning.ts'
import { fromJson } from '../../platform/db/json.ts'
import { type MetadataFilter, metadataConditions } from '../../platform/db/metadata.ts'
import type { NeededBy } from '../../platform/db/needed-by.ts'
import type { Db, Queryable, Trx } from '../../platform/db/open.ts'
import { countRows, newestFirst, sortedPage } from '../../platform/db/page.ts'
import type { NewRow, Row } from '../../platform/db/schema.ts'
import { createEventStream } from '../../platform/events/event-streams.ts'

/** The kind of a job's entry in the queue. */
export const queueKind = 'tuning'

export type JobRow = Row<'tuning_jobs'>

export const insertJob = (trx: Trx, job: NewRow<'tuning_jobs'>) => trx.insertInto('tuning_jobs').values(job).execute()

export const findJob = (db: Queryable, account_id: string, id: string) =>
  db
    .selectFrom('tuning_jobs')
    .selectAll()
    .where('account_id', '=', account_id)
    .where('id', '=', id)
    .where('deleted_at', 'is', null)
    .executeTakeFirst()

/** Also one that was deleted: its row tells what models came from. */
export const findJobUnscoped = (db: Queryable, id: string) =>
  db.selectFrom('tuning_jobs').selectAll().where('id', '=', id).executeTakeFirst()

export function listJobs(db: Db, account_id: string, query: JobQuery, after: JobRow | undefined): Promise<JobRow[]> {
  const { status, metadata } = query
  const at = metadata?.indexOf('=')
  const pair = at === undefined ? undefined : { [metadata!.slice(0, at)]: metadata!.slice(at + 1) }
  const list = (columns: Partial<JobRow>) =>
    sortedPage(
      db,
      'tuning_jobs',
      { account_id, deleted_at: null, ...columns },
      query,
      after,
      metadataConditions(db, pair),
    )
  if (status === undefined) return list({})
  // Paused jobs are stored as queued. A running job with `paused` set is still saving its progress.
  if (status === 'paused') return list({ status: 'queued', paused: 1 })
  return list(status === 'queued' ? { status, paused: 0 } : { status })
}

/** Jobs with this metadata, newest first: up to `limit`, and one more if there are more. */
export const listJobsByMetadata = (
  db: Db,
  account_id: string,
  metadata: MetadataFilter,
  limit: number,
  after: JobRow | undefined,
): Promise<JobRow[]> =>
  newestFirst(
    db
      .selectFrom('tuning_jobs')
      .selectAll()
      .where('account_id', '=', account_id)
      .where('deleted_at', 'is', null)
      .where((and) => and.and(metadataConditions(db, metadata))),
    limit,
    after,
  )

export const unfinishedJobs = (db: Db) =>
  db.selectFrom('tuning_jobs').select('id').where('status', 'in', ['queued', 'running']).execute()

/** Queued and running jobs of all accounts, without paused ones. */
export const liveJobs = (db: Db) =>
  db
    .selectFrom('tuning_jobs')
    .select([
      'id',
      'account_id',
      'status',
      'progress',
      'base_model_id',
      'recipe_json',
      'running_since',
      'estimated_completion',
    ])
    .where('status', 'in', ['queued', 'running'])
    .where((eb) => eb.or([eb('status', '=', 'running'), eb('paused', '=', 0)]))
    .execute()

export type LiveJob = Awaited<ReturnType<typeof liveJobs>>[number]
export type CompletedJob = Pick<JobRow, 'recipe_json' | 'metrics_json' | 'ran_ms'>
/** The last 20 completed jobs on a base, latest first. */
export const completedJobs = (db: Db, base_model_id: string): Promise<CompletedJob[]> =>
  db
    .selectFrom('tuning_jobs')
    .select(['recipe_json', 'metrics_json', 'ran_ms'])
    .where('base_model_id', '=', base_model_id)
    .where('status', '=', 'completed')
    .orderBy('finished_at', 'desc')
    .limit(20)
    .execute()

/** Tokens a second that the last completed job generated on a base, of those that learned from graders. */
export async function generationRate(db: Db, base_model_id: string): Promise<number | undefined> {
  for (const { metrics_json } of await completedJobs(db, base_model_id)) {
    const { generated_tokens, train_seconds } = fromJson(metrics_json)
    if (generated_tokens && train_seconds) return generated_tokens / train_seconds
  }
  return undefined
}

const needing = (trx: Trx) =>
  trx.selectFrom('tuning_jobs').select('id').where('status', 'in', ['queued', 'running']).limit(1)
const named = (job: { id: string } | undefined) => job && `the job ${job.id}`

export const jobNeedsDataset: NeededBy = async (trx, _account_id, id) => {
  const job = needing(trx).where((eb) => eb.or([eb('dataset_id', '=', id), eb('validation_dataset_id', '=', id)]))
  return named(await job.executeTakeFirst())
}

/** For a job that starts from it. */
export const jobNeedsModel: NeededBy = async (trx, account_id, id) =>
  named(await needing(trx).where('account_id', '=', account_id).where('model_id', '=', id).executeTakeFirst())

export const updateJob = (trx: Trx, id: string, values: Partial<JobRow>) =>
  trx.updateTable('tuning_jobs').set(values).where('id', '=', id).execute()

/** Hides a job, and removes what it told while it ran. Which rows it held out stays: evaluations of its models ask. */
export async function deleteJob(trx: Trx, id: string, deleted_at: number): Promise<void> {
  await trx.deleteFrom('job_events').where('job_id', '=', id).execute()
  await trx.deleteFrom('job_evaluations').where('job_id', '=', id).execute()
  await trx.deleteFrom('job_rollouts').where('job_id', '=', id).execute()
  await updateJob(trx, id, { deleted_at })
}

export const jobEvents = createEventStream('job_events', 'job_id')
export const appendEvents = jobEvents.append

/** Events of a job for its users, newest first, from below `before`: up to `limit` and one more. */
export function latestEvents(db: Db, job_id: string, limit: number, before: number | undefined) {
  const events = db.selectFrom('job_events').selectAll().where('job_id', '=', job_id).where('type', '!=', 'progress')
  const below = before === undefined ? events : events.where('seq', '<', before)
  return below
    .orderBy('seq', 'desc')
    .limit(limit + 1)
    .execute()
}

/** By job, the message of its last event with a status, if that has this code. */
export async function waitingEvents(db: Queryable, job_ids: string[], code: string): Promise<Map<string, string>> {
  if (job_ids.length === 0) return new Map()
  const events = await db
    .selectFrom('job_events as event')
    .select(['job_id', 'message', 'data_json'])
    .where('job_id', 'in', job_ids)
    .where('seq', '=', (eb) =>
      eb
        .selectFrom('job_events as last')
        .select(({ fn }) => fn.max('last.seq').as('seq'))
        .whereRef('last.job_id', '=', 'event.job_id')
        .where('last.type', '=', 'status'),
    )
    .execute()
  const waiting = events.filter(({ data_json }) => fromJson(data_json ?? '{}').code === code)
  return new Map(waiting.map(({ job_id, message }) => [job_id, message]))
}

interface LossData {
  step?: number
  loss?: number
  reward?: number
  /** Step and loss of the steps since the event before. */
  losses?: [step: number, loss: number][]
}

/** The data of the events that have losses, oldest first. */
export const lossEvents = async (db: Db, job_id: string): Promise<LossData[]> =>
  (
    await db
      .selectFrom('job_events')
      .select('data_json')
      .where('job_id', '=', job_id)
      .where('type', 'in', ['metrics', 'checkpoint'])
      .orderBy('seq')
      .execute()
  ).map(({ data_json }) => JSON.parse(data_json ?? '{}'))

/** Time of a job's last event from its trainer. Events of the service itself do not count. */
export const lastTrainerEventAt = async (trx: Trx, job_id: string): Promise<number | undefined> =>
  (
    await trx
      .selectFrom('job_events')
      .select('created_at')
      .where('job_id', '=', job_id)
      .where('type', 'in', ['progress', 'metrics', 'checkpoint', 'sample', 'log'])
      .orderBy('seq', 'desc')
      .limit(1)
      .executeTakeFirst()
  )?.created_at

/** Jobs whose trainer's end was never recorded. */
export const jobsWithRunningClock = (trx: Trx) =>
  trx.selectFrom('tuning_jobs').selectAll().where('running_since', 'is not', null).execute()

/** The checkpoint events of a job, newest first. */
export async function checkpoints(
  db: Queryable,
  job_id: string,
  limit: number,
): Promise<{ attempt: number; step: number; sha256: string }[]> {
  const rows = await db
    .selectFrom('job_events')
    .select('data_json')
    .where('job_id', '=', job_id)
    .where('type', '=', 'checkpoint')
    .orderBy('seq', 'desc')
    .limit(limit)
    .execute()
  return rows.map((row) => JSON.parse(row.data_json ?? '{}'))
}

/** Evaluations of a job, latest step first: all, or up to `limit` + 1 of the steps below `after`. */
export async function evaluations(
  db: Queryable,
  job_id: string,
  limit?: number,
  after?: number,
): Promise<Row<'job_evaluations'>[]> {
  let query = db.selectFrom('job_evaluations').selectAll().where('job_id', '=', job_id).orderBy('step', 'desc')
  if (after !== undefined) query = query.where('step', '<', after)
  return (limit === undefined ? query : query.limit(limit + 1)).execute()
}

/** Saves the evaluation of one step. A resumed attempt may evaluate a step again and overwrites it. */
export const saveEvaluation = (trx: Trx, row: Row<'job_evaluations'>) =>
  trx
    .insertInto('job_evaluations')
    .values(row)
    .onConflict((conflict) => conflict.columns(['job_id', 'step']).doUpdateSet(row))
    .execute()

/** An attempt that begins again reports the same rows. */
export async function saveHeldOut(trx: Trx, row: Row<'job_held_out'>): Promise<void> {
  await trx
    .insertInto('job_held_out')
    .values(row)
    .onConflict((conflict) => conflict.column('job_id').doUpdateSet(row))
    .execute()
}

/** Saves answers of a step. A resumed attempt may take it again and overwrites them. */
export const saveRollouts = (trx: Trx, row: Row<'job_rollouts'>) =>
  trx
    .insertInto('job_rollouts')
    .values(row)
    .onConflict((conflict) => conflict.columns(['job_id', 'step', 'split']).doUpdateSet(row))
    .execute()

/** Steps whose answers were kept, latest first: up to `limit` + 1 of those below `after`. */
export async function rolloutSteps(db: Queryable, job_id: string, limit: number, after: number | undefined) {
  const all = db.selectFrom('job_rollouts').select('step').distinct().where('job_id', '=', job_id)
  const below = after === undefined ? all : all.where('step', '<', after)
  const steps = await below
    .orderBy('step', 'desc')
    .limit(limit + 1)
    .execute()
  if (steps.length === 0) return []
  return await db
    .selectFrom('job_rollouts')
    .select(['step', 'split', 'figures_json'])
    .where('job_id', '=', job_id)
    .where('step', '<=', steps[0]!.step)
    .where('step', '>=', steps.at(-1)!.step)
    .orderBy('step', 'desc')
    .execute()
}

export const rolloutsOf = (db: Queryable, job_id: string, step: number) =>
  db.selectFrom('job_rollouts').selectAll().where('job_id', '=', job_id).where('step', '=', step).execute()

/** Step and time of every checkpoint of a job, oldest first. */
export async function checkpointSteps(db: Db, job_id: string): Promise<{ step: number; created_at: number }[]> {
  const events = db
    .selectFrom('job_events')
    .select(['data_json', 'created_at'])
    .where('job_id', '=', job_id)
    .where('type', '=', 'checkpoint')
  return (await events.orderBy('seq').execute()).map(({ data_json, created_at }) => ({
    step: fromJson(data_json!).step as number,
    created_at,
  }))
}

export const addAwaiting = (trx: Trx, job_id: string, model_id: string) =>
  trx.insertInto('jobs_awaiting_weights').values({ job_id, model_id }).execute()

export const removeAwaiting = (trx: Trx, model_id: string) =>
  trx.deleteFrom('jobs_awaiting_weights').where('model_id', '=', model_id).execute()

export const isAwaiting = async (trx: Trx, job_id: string) =>
  (await trx.selectFrom('jobs_awaiting_weights').select('job_id').where('job_id', '=', job_id).executeTakeFirst()) !==
  undefined

/** The bases that jobs wait for. */
export const awaitedModels = async (db: Queryable): Promise<string[]> =>
  (await db.selectFrom('jobs_awaiting_weights').select('model_id').distinct().execute()).map(({ model_id }) => model_id)

/** Those of these jobs that wait for weights, with the base. */
export const awaitedBy = async (db: Db, job_ids: string[]): Promise<Map<string, string>> => {
  const rows = await db.selectFrom('jobs_awaiting_weights').selectAll().where('job_id', 'in', job_ids).execute()
  return new Map(rows.map(({ job_id, model_id }) => [job_id, model_id]))
}

/** Queued jobs that wait for the weights of a base. */
export const jobsAwaitingWeights = (trx: Trx, model_id: string) =>
  trx
    .selectFrom('tuning_jobs')
    .innerJoin('jobs_awaiting_weights', 'jobs_awaiting_weights.job_id', 'tuning_jobs.id')
    .selectAll('tuning_jobs')
    .where('jobs_awaiting_weights.model_id', '=', model_id)
    .where('tuning_jobs.status', '=', 'queued')
    .execute()

/** How many jobs have not ended, by their status in the API. */
export async function countUnfinished(db: Db): Promise<{ queued: number; running: number; paused: number }> {
  const rows = await db
    .selectFrom('tuning_jobs')
    .select(['status', 'paused', sql<number>`count(*)`.as('jobs')])
    // As text, so that SQLite sees that the index of unfinished jobs has all of them.
    .where(sql<boolean>`status in ('queued', 'running')`)
    .groupBy(['status', 'paused'])
    .execute()
  const counts = { queued: 0, running: 0, paused: 0 }
  for (const { jobs, ...row } of rows) counts[statusOf(row) as keyof typeof counts] += Number(jobs)
  return counts
}

/**
 * The status in the API: a queued job with `paused` set is `paused`; a running one stays `running` until its trainer
 * has saved its progress.
 */
export const statusOf = ({ status, paused }: Pick<JobRow, 'status' | 'paused'>) =>
  status === 'queued' && paused ? 'paused' : status

/** How many jobs of an account have not begun. */
export const countQueued = (trx: Trx, account_id: string): Promise<number> =>
  countRows(trx.selectFrom('tuning_jobs').where('account_id', '=', account_id).where('status', '=', 'queued'))
