import type { DeploymentQuery } from '../../../contract/deployments.ts'
import { newId } from '../../../lib/ids.ts'
import { fromJson } from '../../platform/db/json.ts'
import type { NeededBy } from '../../platform/db/needed-by.ts'
import type { Db, Queryable, Trx } from '../../platform/db/open.ts'
import { newestFirst, sortedPage } from '../../platform/db/page.ts'
import type { NewRow, Row } from '../../platform/db/schema.ts'

/** The queue entries of deployments whose model has passed its gate. */
export const queueKind = 'deployment'

export type DeploymentRow = Row<'deployments'>
type ChangeRow = Row<'deployment_history'>

export const insert = (trx: Trx, deployment: NewRow<'deployments'>) =>
  trx.insertInto('deployments').values(deployment).execute()

export const find = (db: Queryable, account_id: string, name: string) =>
  db
    .selectFrom('deployments')
    .selectAll()
    .where('account_id', '=', account_id)
    .where('name', '=', name)
    .executeTakeFirst()

export const update = (trx: Trx, id: string, values: Partial<DeploymentRow>) =>
  trx.updateTable('deployments').set(values).where('id', '=', id).executeTakeFirst()

export const remove = (trx: Trx, id: string) => trx.deleteFrom('deployments').where('id', '=', id).executeTakeFirst()

export const listAll = (db: Db, account_id: string) =>
  db.selectFrom('deployments').selectAll().where('account_id', '=', account_id).orderBy('created_at', 'desc').execute()

export function list(
  db: Db,
  account_id: string,
  query: DeploymentQuery,
  after: DeploymentRow | undefined,
): Promise<DeploymentRow[]> {
  const { status } = query
  return sortedPage(db, 'deployments', status === undefined ? { account_id } : { account_id, status }, query, after)
}

export const findById = (db: Db, account_id: string, id: string) =>
  db.selectFrom('deployments').selectAll().where('account_id', '=', account_id).where('id', '=', id).executeTakeFirst()

export const deploymentNeedsModel: NeededBy = async (trx, account_id, model) => {
  const serving = await trx
    .selectFrom('deployments')
    .select('name')
    .where('account_id', '=', account_id)
    .where('model', '=', model)
    .limit(1)
    .executeTakeFirst()
  return serving && `the deployment ${serving.name}`
}

/** The deployment that waits for an evaluation. */
export async function findPending(
  trx: Trx,
  account_id: string,
  evaluation_id: string,
): Promise<DeploymentRow | undefined> {
  const waiting = await trx
    .selectFrom('deployments')
    .selectAll()
    .where('account_id', '=', account_id)
    .where('pending_json', 'is not', null)
    .execute()
  return waiting.find(({ pending_json }) => fromJson(pending_json!).evaluation === evaluation_id)
}

export const findUnscoped = (db: Queryable, id: string) =>
  db.selectFrom('deployments').selectAll().where('id', '=', id).executeTakeFirst()

/** Adds a change to the history of a deployment. */
export const recordChange = (
  trx: Trx,
  { id, account_id, model: former_model }: Pick<DeploymentRow, 'id' | 'account_id' | 'model'>,
  action: ChangeRow['action'],
  model: string,
  created_at: number,
  { evaluation_id, reason }: { evaluation_id?: string; reason?: string } = {},
) =>
  trx
    .insertInto('deployment_history')
    .values({
      id: newId('chg'),
      account_id,
      deployment_id: id,
      action,
      model,
      former_model: action === 'created' ? null : former_model,
      evaluation_id: evaluation_id ?? null,
      reason: reason ?? null,
      created_at,
    })
    .execute()

export const findChange = (db: Db, deployment_id: string, id: string) =>
  db
    .selectFrom('deployment_history')
    .selectAll()
    .where('deployment_id', '=', deployment_id)
    .where('id', '=', id)
    .executeTakeFirst()

export const listChanges = (db: Db, deployment_id: string, limit: number, after: ChangeRow | undefined) =>
  newestFirst(db.selectFrom('deployment_history').selectAll().where('deployment_id', '=', deployment_id), limit, after)

export const listStarting = (db: Queryable) =>
  db.selectFrom('deployments').selectAll().where('status', '=', 'starting').execute()
