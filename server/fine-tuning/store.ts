import type { SortedQuery } from '../../contract/common.ts'
import type { Job, JobQuery } from '../../contract/tuning.ts'
import type { Db, Trx } from '../db/open.ts'
import { sorted } from '../db/page.ts'
import type { NewRow, Row } from '../db/schema.ts'
import { createEventLog } from '../events/event-streams.ts'
import type { Forecast } from './forecast.ts'
import { labelsOf } from './models/labels.ts'

export type JobRow = Row<'tuning_jobs'>
export type ModelRow = Row<'models'>

export const insertJob = (trx: Trx, job: NewRow<'tuning_jobs'>) => trx.insertInto('tuning_jobs').values(job).execute()

export const findJob = (db: Db | Trx, account_id: string, id: string) =>
  db.selectFrom('tuning_jobs').selectAll().where('account_id', '=', account_id).where('id', '=', id).executeTakeFirst()

export const jobById = (db: Db | Trx, id: string) =>
  db.selectFrom('tuning_jobs').selectAll().where('id', '=', id).executeTakeFirst()

export function listJobs(db: Db, account_id: string, query: JobQuery, after: JobRow | undefined): Promise<JobRow[]> {
  const { status } = query
  const all = db.selectFrom('tuning_jobs').selectAll().where('account_id', '=', account_id)
  if (status === undefined) return sorted(all, query, after)
  // A queued job that was told to wait is a paused one; a running one is on its way to be.
  if (status === 'paused') return sorted(all.where('status', '=', 'queued').where('paused', '=', 1), query, after)
  const found = all.where('status', '=', status)
  return sorted(status === 'queued' ? found.where('paused', '=', 0) : found, query, after)
}

export const unfinishedJobs = (db: Db) =>
  db.selectFrom('tuning_jobs').select('id').where('status', 'in', ['queued', 'running']).execute()

/** What is queued or running of all accounts, but for what was told to wait. */
export const liveJobs = (db: Db) =>
  db
    .selectFrom('tuning_jobs')
    .select(['id', 'status', 'progress', 'base_model_id', 'recipe_json', 'running_since', 'estimated_completion'])
    .where('status', 'in', ['queued', 'running'])
    .where((eb) => eb.or([eb('status', '=', 'running'), eb('paused', '=', 0)]))
    .execute()

export type TimedJob = Pick<JobRow, 'recipe_json' | 'metrics_json' | 'ran_ms'>
/** The last completed jobs on a base, the latest first. */
export const timedJobs = (db: Db, base_model_id: string): Promise<TimedJob[]> =>
  db
    .selectFrom('tuning_jobs')
    .select(['recipe_json', 'metrics_json', 'ran_ms'])
    .where('base_model_id', '=', base_model_id)
    .where('status', '=', 'completed')
    .orderBy('finished_at', 'desc')
    .limit(20)
    .execute()

/** A job that still needs this dataset, if there is one. */
export const liveJobOfDataset = (trx: Trx, dataset_id: string) =>
  trx
    .selectFrom('tuning_jobs')
    .select('id')
    .where((eb) => eb.or([eb('dataset_id', '=', dataset_id), eb('validation_dataset_id', '=', dataset_id)]))
    .where('status', 'in', ['queued', 'running'])
    .limit(1)
    .executeTakeFirst()

export const updateJob = (trx: Trx, id: string, values: Partial<JobRow>) =>
  trx.updateTable('tuning_jobs').set(values).where('id', '=', id).execute()

export const log = createEventLog('job_events', 'job_id')
export const appendEvents = log.append

/** When a job's trainer last said something; what the service itself wrote since is no sign of it. */
export const lastHeard = async (trx: Trx, job_id: string): Promise<number | undefined> =>
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

/** Jobs whose trainer was not seen to end. */
export const withRunningClock = (trx: Trx) =>
  trx.selectFrom('tuning_jobs').selectAll().where('running_since', 'is not', null).execute()

/** The checkpoints that were announced for a job, newest first. */
export async function checkpoints(
  db: Db | Trx,
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

/** Evaluations of a job, the latest step first: all, or one more than `limit` before the step `after`. */
export async function evaluations(
  db: Db,
  job_id: string,
  limit?: number,
  after?: number,
): Promise<Row<'job_evaluations'>[]> {
  let query = db.selectFrom('job_evaluations').selectAll().where('job_id', '=', job_id).orderBy('step', 'desc')
  if (after !== undefined) query = query.where('step', '<', after)
  return (limit === undefined ? query : query.limit(limit + 1)).execute()
}

/** What one step was found to be; an attempt that goes on from before finds it anew. */
export const saveEvaluation = (trx: Trx, row: Row<'job_evaluations'>) =>
  trx
    .insertInto('job_evaluations')
    .values(row)
    .onConflict((conflict) => conflict.columns(['job_id', 'step']).doUpdateSet(row))
    .execute()

/** Every checkpoint that was announced for a job, oldest first. */
export async function writtenCheckpoints(db: Db, job_id: string): Promise<{ step: number; created_at: number }[]> {
  const events = db
    .selectFrom('job_events')
    .select(['data_json', 'created_at'])
    .where('job_id', '=', job_id)
    .where('type', '=', 'checkpoint')
  return (await events.orderBy('seq').execute()).map(({ data_json, created_at }) => ({
    step: JSON.parse(data_json!).step,
    created_at,
  }))
}

export const insertModel = (trx: Trx, model: NewRow<'models'>) => trx.insertInto('models').values(model).execute()

export const findModel = (db: Db | Trx, account_id: string, id: string) =>
  db.selectFrom('models').selectAll().where('account_id', '=', account_id).where('id', '=', id).executeTakeFirst()

export const listModels = (
  db: Db,
  account_id: string,
  query: SortedQuery,
  after: ModelRow | undefined,
): Promise<ModelRow[]> => sorted(db.selectFrom('models').selectAll().where('account_id', '=', account_id), query, after)

export const updateModel = (trx: Trx, id: string, values: Partial<ModelRow>) =>
  trx.updateTable('models').set(values).where('id', '=', id).execute()

export const allModels = (db: Db, account_id: string): Promise<ModelRow[]> =>
  db.selectFrom('models').selectAll().where('account_id', '=', account_id).orderBy('created_at', 'desc').execute()

export const modelsOfJob = (db: Db, job_id: string): Promise<ModelRow[]> =>
  db.selectFrom('models').selectAll().where('job_id', '=', job_id).orderBy('step').orderBy('id').execute()

export const everyModel = (db: Db) => db.selectFrom('models').select(['id', 'kind', 'gguf_sha256']).execute()

export const modelExists = async (db: Db, id: string) =>
  (await db.selectFrom('models').select('id').where('id', '=', id).executeTakeFirst()) !== undefined

export const deleteModel = (trx: Trx, id: string) => trx.deleteFrom('models').where('id', '=', id).execute()

export const rememberComparison = (db: Db, id: string, comparison_json: string) =>
  db.updateTable('models').set({ comparison_json }).where('id', '=', id).execute()

/** A job that is still to go on from this model, if there is one. */
export async function jobThatNeedsModel(trx: Trx, account_id: string, model_id: string): Promise<string | undefined> {
  const query = trx
    .selectFrom('tuning_jobs')
    .select('id')
    .where('account_id', '=', account_id)
    .where('model_id', '=', model_id)
  const job = await query.where('status', 'in', ['queued', 'running']).limit(1).executeTakeFirst()
  return job && `the job ${job.id}`
}

/** How many of an account wait for their turn. */
export async function waitingJobs(trx: Trx, account_id: string): Promise<number> {
  const query = trx.selectFrom('tuning_jobs').select(({ fn }) => fn.countAll().as('count'))
  const { count } = await query
    .where('account_id', '=', account_id)
    .where('status', '=', 'queued')
    .executeTakeFirstOrThrow()
  return Number(count)
}

/** An adapter that stands on the weights of this model, if there is one. */
export async function modelOnModel(trx: Trx, account_id: string, model_id: string): Promise<string | undefined> {
  const query = trx
    .selectFrom('models')
    .select('id')
    .where('account_id', '=', account_id)
    .where('weights_model_id', '=', model_id)
  const model = await query.limit(1).executeTakeFirst()
  return model && `the model ${model.id}`
}

export const addAwaiting = (trx: Trx, job_id: string, model_id: string) =>
  trx.insertInto('jobs_awaiting_weights').values({ job_id, model_id }).execute()

export const removeAwaiting = (trx: Trx, model_id: string) =>
  trx.deleteFrom('jobs_awaiting_weights').where('model_id', '=', model_id).execute()

export const isAwaiting = async (trx: Trx, job_id: string) =>
  (await trx.selectFrom('jobs_awaiting_weights').select('job_id').where('job_id', '=', job_id).executeTakeFirst()) !==
  undefined

/** Queued jobs that wait for the weights of a base. */
export const awaiting = (trx: Trx, model_id: string) =>
  trx
    .selectFrom('tuning_jobs')
    .innerJoin('jobs_awaiting_weights', 'jobs_awaiting_weights.job_id', 'tuning_jobs.id')
    .selectAll('tuning_jobs')
    .where('jobs_awaiting_weights.model_id', '=', model_id)
    .where('tuning_jobs.status', '=', 'queued')
    .execute()

const iso = (time: number | null) => (time === null ? null : new Date(time).toISOString())

/**
 * A job that waits until it is told to go on is paused; one that runs still is until its trainer has saved its
 * progress.
 */
export const statusOf = ({ status, paused }: Pick<JobRow, 'status' | 'paused'>) =>
  status === 'queued' && paused ? 'paused' : status

export const toWire = (job: JobRow, forecast?: Forecast): Job => ({
  id: job.id,
  ...labelsOf(job),
  status: statusOf(job),
  paused: job.paused === 1,
  model_id: job.model_id,
  dataset_id: job.dataset_id,
  progress: job.progress,
  current_epoch: job.current_epoch,
  metrics: JSON.parse(job.metrics_json),
  slowed_by: job.status === 'running' ? job.slowed_by : null,
  queue_position: forecast?.queue_position ?? null,
  estimated_start: iso(forecast?.estimated_start ?? null),
  estimated_completion: iso(job.estimated_completion),
  created_at: new Date(job.created_at).toISOString(),
  started_at: iso(job.started_at),
  finished_at: iso(job.finished_at),
  error: job.error_json ? JSON.parse(job.error_json) : null,
  config: JSON.parse(job.config_json),
  resolved_config: JSON.parse(job.resolved_config_json),
  trained_tokens: job.trained_tokens,
  model: job.model,
})
