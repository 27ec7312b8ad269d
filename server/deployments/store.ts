import type { DeploymentQuery } from '../../contract/deployments.ts'
import type { Db, Trx } from '../db/open.ts'
import { sortedPage } from '../db/page.ts'
import type { NewRow, Row } from '../db/schema.ts'

export type DeploymentRow = Row<'deployments'>

export const insert = (trx: Trx, deployment: NewRow<'deployments'>) =>
  trx.insertInto('deployments').values(deployment).execute()

export const find = (db: Db | Trx, account_id: string, name: string) =>
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
  const all = db.selectFrom('deployments').selectAll().where('account_id', '=', account_id)
  return sortedPage(query.status === undefined ? all : all.where('status', '=', query.status), query, after)
}

export const byId = (db: Db, account_id: string, id: string) =>
  db.selectFrom('deployments').selectAll().where('account_id', '=', account_id).where('id', '=', id).executeTakeFirst()

export const findServing = (trx: Trx, account_id: string, model: string) =>
  trx
    .selectFrom('deployments')
    .select('name')
    .where('account_id', '=', account_id)
    .where('model', '=', model)
    .limit(1)
    .executeTakeFirst()

export const listStarting = (db: Db | Trx) =>
  db.selectFrom('deployments').selectAll().where('status', '=', 'starting').execute()
