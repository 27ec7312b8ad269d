import type { Db, Queryable, Trx } from '../../platform/db/open.ts'
import type { NewRow, Row } from '../../platform/db/schema.ts'

export type ScalingRow = Row<'deployment_scaling'>

export const find = (db: Queryable, deployment_id: string) =>
  db.selectFrom('deployment_scaling').selectAll().where('deployment_id', '=', deployment_id).executeTakeFirst()

/** The configurations of all deployments but those of suspended accounts, which have no replicas. */
export const listAll = (db: Db) =>
  db
    .selectFrom('deployment_scaling')
    .innerJoin('deployments', 'deployments.id', 'deployment_scaling.deployment_id')
    .innerJoin('accounts', 'accounts.id', 'deployments.account_id')
    .selectAll('deployment_scaling')
    .where('accounts.suspended_at', 'is', null)
    .execute()

export const save = (trx: Trx, row: NewRow<'deployment_scaling'>) =>
  trx
    .insertInto('deployment_scaling')
    .values(row)
    .onConflict((conflict) => conflict.column('deployment_id').doUpdateSet(row))
    .execute()

/** The configurations of an account's deployments. */
export const ofAccount = (trx: Trx, account_id: string) =>
  trx
    .selectFrom('deployment_scaling')
    .innerJoin('deployments', 'deployments.id', 'deployment_scaling.deployment_id')
    .selectAll('deployment_scaling')
    .where('deployments.account_id', '=', account_id)
    .execute()

/** Removes the configuration and the decisions. */
export async function remove(trx: Trx, deployment_id: string): Promise<boolean> {
  await trx.deleteFrom('scaling_decisions').where('deployment_id', '=', deployment_id).execute()
  const { numDeletedRows } = await trx
    .deleteFrom('deployment_scaling')
    .where('deployment_id', '=', deployment_id)
    .executeTakeFirst()
  return numDeletedRows > 0n
}

/** The last decisions, newest first. */
export const decisions = (db: Queryable, deployment_id: string, limit: number) =>
  db
    .selectFrom('scaling_decisions')
    .selectAll()
    .where('deployment_id', '=', deployment_id)
    .orderBy('created_at', 'desc')
    .orderBy('id', 'desc')
    .limit(limit)
    .execute()

/** Adds a decision, and removes all but the last `kept`. Nothing if the deployment does not scale any more. */
export async function insertDecision(trx: Trx, row: NewRow<'scaling_decisions'>, kept: number): Promise<void> {
  if (!(await find(trx, row.deployment_id))) return
  await trx.insertInto('scaling_decisions').values(row).execute()
  const last = await trx
    .selectFrom('scaling_decisions')
    .select('created_at')
    .where('deployment_id', '=', row.deployment_id)
    .orderBy('created_at', 'desc')
    .offset(kept)
    .limit(1)
    .executeTakeFirst()
  if (last)
    await trx
      .deleteFrom('scaling_decisions')
      .where('deployment_id', '=', row.deployment_id)
      .where('created_at', '<=', last.created_at)
      .execute()
}
