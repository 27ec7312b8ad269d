import { sql } from 'kysely'
import type { Db, Trx } from '../db/open.ts'
import { newestFirst } from '../db/page.ts'
import type { NewRow, Row } from '../db/schema.ts'
import { slowedFrom } from './schedule.ts'

export type WebhookRow = Row<'webhooks'>
export type DeliveryRow = Row<'webhook_deliveries'>
export type AttemptRow = Row<'webhook_attempts'>
type Any = Db | Trx

const webhooks = (db: Any, account_id: string) => db.selectFrom('webhooks').selectAll().where('account_id', '=', account_id)
export const insertWebhook = (trx: Trx, webhook: NewRow<'webhooks'>) => trx.insertInto('webhooks').values(webhook).execute()
export const updateWebhook = (trx: Trx, id: string, values: Partial<WebhookRow>) => trx.updateTable('webhooks').set(values).where('id', '=', id).execute()
export const deleteWebhook = (trx: Trx, id: string) => trx.deleteFrom('webhooks').where('id', '=', id).execute()
export const webhook = (db: Any, account_id: string, id: string) => webhooks(db, account_id).where('id', '=', id).executeTakeFirst()
export const listWebhooks = (db: Db, account_id: string, limit: number, after: WebhookRow | undefined): Promise<WebhookRow[]> =>
  newestFirst(webhooks(db, account_id), limit, after)
export const countWebhooks = async (db: Any, account_id: string) =>
  Number(
    (
      await webhooks(db, account_id)
        .clearSelect()
        .select((eb) => eb.fn.countAll().as('count'))
        .executeTakeFirstOrThrow()
    ).count,
  )

const deliveries = (db: Any, webhook_id: string) => db.selectFrom('webhook_deliveries').selectAll().where('webhook_id', '=', webhook_id)
export const insertDelivery = (trx: Trx, delivery: NewRow<'webhook_deliveries'>) => trx.insertInto('webhook_deliveries').values(delivery).execute()
export const delivery = (db: Any, webhook_id: string, id: string) => deliveries(db, webhook_id).where('id', '=', id).executeTakeFirst()
export const listDeliveries = (db: Db, webhook_id: string, limit: number, after: DeliveryRow | undefined): Promise<DeliveryRow[]> =>
  newestFirst(deliveries(db, webhook_id), limit, after)
export const event = (db: Any, id: string) => db.selectFrom('events').selectAll().where('id', '=', id).executeTakeFirstOrThrow()

export const insertAttempt = (trx: Trx, attempt: NewRow<'webhook_attempts'>) => trx.insertInto('webhook_attempts').values(attempt).execute()
export const attempts = (db: Any, delivery_id: string) =>
  db.selectFrom('webhook_attempts').selectAll().where('delivery_id', '=', delivery_id).orderBy('number').execute()
/** The last try at each of these deliveries. */
export const lastAttempts = (db: Any, of: readonly DeliveryRow[]) =>
  db
    .selectFrom('webhook_attempts as attempt')
    .innerJoin('webhook_deliveries as delivery', (join) =>
      join.onRef('delivery.id', '=', 'attempt.delivery_id').onRef('delivery.attempts', '=', 'attempt.number'),
    )
    .selectAll('attempt')
    .where('delivery.id', 'in', of.length > 0 ? of.map(({ id }) => id) : [''])
    .execute()

/** The most tries at once to one webhook; and to all of those whose last try failed, so that who lets them hang leaves room for others. */
const perWebhook = 2
const toFailing = 128

/**
 * A delivery that is due, leased until `lease_until`; undefined where there is none. One whose webhook has as many tries under way as it may, or is
 * slowed or disabled, or whose account is suspended, lets others pass; a test is tried also where the webhook is slowed or disabled.
 */
export function claim(db: Db, now: number, lease_until: number): Promise<DeliveryRow | undefined> {
  const free = sql<boolean>`(lease_until is null or lease_until <= ${now})`
  const ready = sql<boolean>`(webhook.disabled_at is null and (webhook.slowed_until is null or webhook.slowed_until <= ${now}))`
  const underWay = sql<number>`(select count(*) from webhook_deliveries as other where other.lease_until > ${now} and other.webhook_id = webhook.id)`
  const underWayToFailing = sql<number>`(select count(*) from webhook_deliveries as other join webhooks as its on its.id = other.webhook_id
    where other.lease_until > ${now} and its.failures > 0)`
  return (
    db
      .updateTable('webhook_deliveries')
      .set({ lease_until })
      .where('id', '=', (eb) =>
        eb
          .selectFrom('webhook_deliveries as delivery')
          .innerJoin('webhooks as webhook', 'webhook.id', 'delivery.webhook_id')
          .innerJoin('accounts as account', 'account.id', 'delivery.account_id')
          .select('delivery.id')
          .where('delivery.next_attempt_at', '<=', now)
          .where(free)
          .where('account.suspended_at', 'is', null)
          .where(sql<boolean>`(delivery.type = 'webhook.test' or ${ready})`)
          .where(sql<boolean>`${underWay} < case when webhook.failures >= ${slowedFrom} then 1 else ${perWebhook} end`)
          .where(sql<boolean>`(webhook.failures = 0 or ${underWayToFailing} < ${toFailing})`)
          // What has not been tried yet shows soonest whether a slowed webhook is well again.
          .orderBy('delivery.attempts')
          .orderBy('delivery.next_attempt_at')
          .limit(1),
      )
      // Again, for a database in which another process may have claimed it since it was looked for.
      .where(free)
      .returningAll()
      .executeTakeFirst()
  )
}

/** Ends a claim; false where it was another's by then, or its webhook has been deleted. */
export async function settle(trx: Trx, claimed: DeliveryRow, values: Partial<DeliveryRow>): Promise<boolean> {
  const result = await trx
    .updateTable('webhook_deliveries')
    .set({ ...values, lease_until: null })
    .where('id', '=', claimed.id)
    .where('lease_until', '=', claimed.lease_until)
    .executeTakeFirst()
  return result.numUpdatedRows > 0n
}

export const releaseAll = (db: Db) => db.updateTable('webhook_deliveries').set({ lease_until: null }).where('lease_until', 'is not', null).execute()
