import type { Db, Trx } from '../db/open.ts'
import { newestFirst } from '../db/page.ts'
import type { NewRow, Row } from '../db/schema.ts'
import { createEventLog } from '../event-log.ts'

export type JobRow = Row<'tuning_jobs'>
export type ModelRow = Row<'models'>

export const insertJob = (trx: Trx, job: NewRow<'tuning_jobs'>) => trx.insertInto('tuning_jobs').values(job).execute()

export const findJob = (db: Db | Trx, account_id: string, id: string) =>
  db.selectFrom('tuning_jobs').selectAll().where('account_id', '=', account_id).where('id', '=', id).executeTakeFirst()

export const jobById = (db: Db | Trx, id: string) => db.selectFrom('tuning_jobs').selectAll().where('id', '=', id).executeTakeFirst()

export const listJobs = (db: Db, account_id: string, limit: number, after: JobRow | undefined): Promise<JobRow[]> =>
  newestFirst(db.selectFrom('tuning_jobs').selectAll().where('account_id', '=', account_id), limit, after)

export const unfinishedJobs = (db: Db) => db.selectFrom('tuning_jobs').select('id').where('status', 'in', ['queued', 'running']).execute()

/** A job that still needs this dataset, if there is one. */
export const liveJobOfDataset = (trx: Trx, dataset_id: string) =>
  trx
    .selectFrom('tuning_jobs')
    .select('id')
    .where((eb) => eb.or([eb('dataset_id', '=', dataset_id), eb('validation_dataset_id', '=', dataset_id)]))
    .where('status', 'in', ['queued', 'running'])
    .limit(1)
    .executeTakeFirst()

export const updateJob = (trx: Trx, id: string, values: Partial<JobRow>) => trx.updateTable('tuning_jobs').set(values).where('id', '=', id).execute()

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
export const withRunningClock = (trx: Trx) => trx.selectFrom('tuning_jobs').selectAll().where('running_since', 'is not', null).execute()

/** The checkpoints that were announced for a job, newest first. */
export async function checkpoints(db: Db | Trx, job_id: string, limit: number): Promise<{ attempt: number; step: number; sha256: string }[]> {
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

export const insertModel = (trx: Trx, model: NewRow<'models'>) => trx.insertInto('models').values(model).execute()

export const findModel = (db: Db | Trx, account_id: string, id: string) =>
  db.selectFrom('models').selectAll().where('account_id', '=', account_id).where('id', '=', id).executeTakeFirst()

export const listModels = (db: Db, account_id: string, limit: number, after: ModelRow | undefined): Promise<ModelRow[]> =>
  newestFirst(db.selectFrom('models').selectAll().where('account_id', '=', account_id), limit, after)

export const allModels = (db: Db, account_id: string): Promise<ModelRow[]> =>
  db.selectFrom('models').selectAll().where('account_id', '=', account_id).orderBy('created_at', 'desc').execute()

export const modelsOfJob = (db: Db, job_id: string): Promise<ModelRow[]> =>
  db.selectFrom('models').selectAll().where('job_id', '=', job_id).orderBy('step').orderBy('id').execute()

export const everyModel = (db: Db) => db.selectFrom('models').select(['id', 'kind', 'gguf_sha256']).execute()

export const modelExists = async (db: Db, id: string) => (await db.selectFrom('models').select('id').where('id', '=', id).executeTakeFirst()) !== undefined

export const deleteModel = (trx: Trx, id: string) => trx.deleteFrom('models').where('id', '=', id).execute()

export const rememberComparison = (db: Db, id: string, comparison_json: string) =>
  db.updateTable('models').set({ comparison_json }).where('id', '=', id).execute()

/** A job that is still to go on from this model, if there is one. */
export async function jobThatNeedsModel(trx: Trx, account_id: string, model_id: string): Promise<string | undefined> {
  const query = trx.selectFrom('tuning_jobs').select('id').where('account_id', '=', account_id).where('model_id', '=', model_id)
  const job = await query.where('status', 'in', ['queued', 'running']).limit(1).executeTakeFirst()
  return job && `the job ${job.id}`
}

/** How many of an account wait for their turn. */
export async function waitingJobs(trx: Trx, account_id: string): Promise<number> {
  const query = trx.selectFrom('tuning_jobs').select(({ fn }) => fn.countAll().as('count'))
  const { count } = await query.where('account_id', '=', account_id).where('status', '=', 'queued').executeTakeFirstOrThrow()
  return Number(count)
}

/** An adapter that stands on the weights of this model, if there is one. */
export async function modelOnModel(trx: Trx, account_id: string, model_id: string): Promise<string | undefined> {
  const query = trx.selectFrom('models').select('id').where('account_id', '=', account_id).where('parent_model_id', '=', model_id)
  const model = await query.limit(1).executeTakeFirst()
  return model && `the model ${model.id}`
}
