import type { SortedQuery } from '../../../contract/common.ts'
import type { Db, Queryable, Trx } from '../../platform/db/open.ts'
import { sortedPage } from '../../platform/db/page.ts'
import type { NewRow, Row } from '../../platform/db/schema.ts'

export type ModelRow = Row<'models'>

export const insertModel = (trx: Trx, model: NewRow<'models'>) => trx.insertInto('models').values(model).execute()

export const findModel = (db: Queryable, account_id: string, id: string) =>
  db.selectFrom('models').selectAll().where('account_id', '=', account_id).where('id', '=', id).executeTakeFirst()

export const findNames = (db: Queryable, ids: string[]) =>
  db.selectFrom('models').select(['id', 'name']).where('id', 'in', ids).execute()

export const findModelByFtName = (db: Queryable, account_id: string, ft_name: string) =>
  db
    .selectFrom('models')
    .selectAll()
    .where('account_id', '=', account_id)
    .where('ft_name', '=', ft_name)
    .executeTakeFirst()

export const listModels = (
  db: Db,
  account_id: string,
  query: SortedQuery,
  after: ModelRow | undefined,
): Promise<ModelRow[]> => sortedPage(db, 'models', { account_id }, query, after)

export const updateModel = (trx: Trx, id: string, values: Partial<ModelRow>) =>
  trx.updateTable('models').set(values).where('id', '=', id).execute()

export const allModels = (db: Db, account_id: string): Promise<ModelRow[]> =>
  db.selectFrom('models').selectAll().where('account_id', '=', account_id).orderBy('created_at', 'desc').execute()

export const modelsOfJob = (db: Db, job_id: string): Promise<ModelRow[]> =>
  db.selectFrom('models').selectAll().where('job_id', '=', job_id).orderBy('step').orderBy('id').execute()

export const modelFileRows = (db: Db) =>
  db.selectFrom('models').select(['id', 'kind', 'gguf_sha256', 'projector_sha256', 'drafts_sha256']).execute()

export const findModelUnscoped = (db: Db, id: string) =>
  db.selectFrom('models').selectAll().where('id', '=', id).executeTakeFirst()

/** Whether a model has a draft file; undefined if there is no such model. */
export async function hasDrafts(db: Db, id: string): Promise<boolean | undefined> {
  const model = await db.selectFrom('models').select('drafts_sha256').where('id', '=', id).executeTakeFirst()
  return model && model.drafts_sha256 !== null
}

/** From now on the models that were trained on a dataset have no draft files; returns the ids of those that had. */
export async function forgetDrafts(trx: Trx, account_id: string, dataset_id: string): Promise<string[]> {
  const jobs = trx
    .selectFrom('tuning_jobs')
    .select('id')
    .where('account_id', '=', account_id)
    .where('dataset_id', '=', dataset_id)
  const models = trx.updateTable('models').set({ drafts_sha256: null }).where('drafts_sha256', 'is not', null)
  return (await models.where('job_id', 'in', jobs).returning('id').execute()).map(({ id }) => id)
}

export const deleteModel = (trx: Trx, id: string) => trx.deleteFrom('models').where('id', '=', id).execute()

export const saveComparison = (db: Db, id: string, comparison_json: string) =>
  db.updateTable('models').set({ comparison_json }).where('id', '=', id).execute()

/** An adapter that needs the whole weights of this model, if any. */
export async function modelUsingWeights(trx: Trx, account_id: string, model_id: string): Promise<string | undefined> {
  const query = trx
    .selectFrom('models')
    .select('id')
    .where('account_id', '=', account_id)
    .where('weights_model_id', '=', model_id)
  const model = await query.limit(1).executeTakeFirst()
  return model && `the model ${model.id}`
}
