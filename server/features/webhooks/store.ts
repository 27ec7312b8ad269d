import { sql } from 'kysely'
import type { Db, Queryable, Trx } from '../../platform/db/open.ts'
import { countRows, newestFirst } from '../../platform/db/page.ts'
import type { NewRow, Row } from '../../platform/db/schema.ts'
import { slowedFrom } from './schedule.ts'

export type WebhookRow = Row<'webhooks'>
export type DeliveryRow = Row<'webhook_deliveries'>
export type AttemptRow = Row<'webhook_attempts'>
type Any = Queryable

const webhooks = (db: Any, account_id: string) =>
  db.selectFrom('webhooks').selectAll().where('account_id', '=', account_id)
export const insertWebhook = (trx: Trx, webhook: NewRow<'webhooks'>) =>
  trx.insertInto('webhooks').values(webhook).execute()
export const updateWebhook = (trx: Trx, id: string, values: Partial<WebhookRow>) =>
  trx.updateTable('webhooks').set(values).where('id', '=', id).execute()
export const deleteWebhook = (trx: Trx, id: string) => trx.deleteFrom('webhooks').where('id', '=', id).execute()
export const findWebhook = (db: Any, account_id: string, id: string) =>
  webhooks(db, account_id).where('id', '=', id).executeTakeFirst()
export const listWebhooks = (
  db: Db,
  account_id: string,
  limit: number,
  after: WebhookRow | undefined,
): Promise<WebhookRow[]> => newestFirst(webhooks(db, account_id), limit, after)
export const countWebhooks = (db: Any, account_id: string) => countRows(webhooks(db, account_id))

const deliveries = (db: Any, webhook_id: string) =>
  db.selectFrom('webhook_deliveries').selectAll().where('webhook_id', '=', webhook_id)
export const insertDelivery = (trx: Trx, delivery: NewRow<'webhook_deliveries'>) =>
  trx.insertInto('webhook_deliveries').values(delivery).execute()
export const findDelivery = (db: Any, webhook_id: string, id: string) =>
  deliveries(db, webhook_id).where('id', '=', id).executeTakeFirst()
export const listDeliveries = (
  db: Db,
  webhook_id: string,
  limit: number,
  after: DeliveryRow | undefined,
): Promise<DeliveryRow[]> => newestFirst(deliveries(db, webhook_id), limit, after)
export const findEventUnscoped = (db: Any, id: string) =>
  db.selectFrom('events').selectAll().where('id', '=', id).executeTakeFirstOrThrow()

export const insertAttempt = (trx: Trx, attempt: NewRow<'webhook_attempts'>) =>
  trx.insertInto('webhook_attempts').values(attempt).execute()
export const attempts = (db: Any, delivery_id: string) =>
  db.selectFrom('webhook_attempts').selectAll().where('delivery_id', '=', delivery_id).orderBy('number').execute()
/** The last attempt of each of these deliveries. */
export const lastAttempts = (db: Any, of: readonly DeliveryRow[]) =>
  db
    .selectFrom('webhook_attempts as attempt')
    .innerJoin('webhook_deliveries as delivery', (join) =>
      join.onRef('delivery.id', '=', 'attempt.delivery_id').onRef('delivery.attempts', '=', 'attempt.number'),
    )
    .selectAll('attempt')
    .where('delivery.id', 'in', of.length > 0 ? of.map(({ id }) => id) : [''])
    .execute()

/** The most concurrent attempts to one webhook. */
const maxPerWebhook = 2

/**
 * Leases due deliveries until `lease_until`, one per webhook at most. `failing` selects the webhooks whose last attempt
 * failed, or the others. Skips webhooks at their concurrency limit, slowed or disabled webhooks (except for test
 * events), and suspended accounts. The account with the fewest attempts in progress is next. Of an account, deliveries
 * with the fewest attempts come first: they show soonest whether a slowed webhook has recovered.
 */
export function claim(
  db: Db,
  now: number,
  lease_until: number,
  { failing, limit }: { failing: boolean; limit: number },
): Promise<DeliveryRow[]> {
  const unleased = sql<boolean>`(lease_until is null or lease_until <= ${now})`
  const ready = sql<boolean>`(webhook.disabled_at is null
    and (webhook.slowed_until is null or webhook.slowed_until <= ${now}))`
  const next = sql<string>`(select id from webhook_deliveries
    where webhook_id = webhook.id and next_attempt_at <= ${now} and ${unleased}
    and (type = 'webhook.test' or ${ready}) order by attempts, next_attempt_at limit 1)`
  const inFlight = sql<number>`(select count(*) from webhook_deliveries
    where webhook_id = webhook.id and lease_until > ${now})`
  const ofAccount = sql<number>`(select count(*) from webhook_deliveries where lease_until > ${now}
    and webhook_id in (select id from webhooks where account_id = webhook.account_id))`
  const rank = sql<number>`row_number() over (partition by webhook.account_id
    order by delivery.attempts, delivery.next_attempt_at)`
  return (
    db
      .updateTable('webhook_deliveries')
      .set({ lease_until })
      .where('id', 'in', (eb) =>
        eb
          .selectFrom('webhooks as webhook')
          .innerJoin('accounts as account', 'account.id', 'webhook.account_id')
          .innerJoin('webhook_deliveries as delivery', (join) => join.on('delivery.id', '=', next))
          .select('delivery.id')
          .where('webhook.id', 'in', (due) =>
            due.selectFrom('webhook_deliveries').select('webhook_id').where('next_attempt_at', '<=', now),
          )
          .where('webhook.failures', failing ? '>' : '=', 0)
          .where('account.suspended_at', 'is', null)
          .where(
            sql<boolean>`${inFlight} < case when webhook.failures >= ${slowedFrom} then 1 else ${maxPerWebhook} end`,
          )
          .orderBy(sql`${ofAccount} + ${rank}`)
          .orderBy('delivery.attempts')
          .orderBy('delivery.next_attempt_at')
          .limit(limit),
      )
      // Check again: another process may have claimed it since the subquery.
      .where(unleased)
      .returningAll()
      .execute()
  )
}

/** Whether a delivery is due that nobody attempts now. Whether its webhook may have it is for the claim to say. */
export async function hasDue(db: Db, now: number): Promise<boolean> {
  const due = await db
    .selectFrom('webhook_deliveries')
    .select('id')
    .where('next_attempt_at', '<=', now)
    .where(({ or, eb }) => or([eb('lease_until', 'is', null), eb('lease_until', '<=', now)]))
    .limit(1)
    .executeTakeFirst()
  return due !== undefined
}

/** Deliveries that have not ended, and when the next one to a webhook that takes them was due (unix ms). */
export async function backlog(db: Db, now: number): Promise<{ pending: number; due_at: number | undefined }> {
  const pending = await countRows(db.selectFrom('webhook_deliveries').where('next_attempt_at', 'is not', null))
  const first = await db
    .selectFrom('webhook_deliveries')
    .select('next_attempt_at')
    .where('next_attempt_at', 'is not', null)
    .where('webhook_id', 'in', (eb) =>
      eb
        .selectFrom('webhooks')
        .select('webhooks.id')
        .innerJoin('accounts', 'accounts.id', 'webhooks.account_id')
        .where('disabled_at', 'is', null)
        .where('suspended_at', 'is', null)
        .where((or) => or.or([or('slowed_until', 'is', null), or('slowed_until', '<=', now)])),
    )
    .orderBy('next_attempt_at')
    .limit(1)
    .executeTakeFirst()
  return { pending, due_at: first?.next_attempt_at ?? undefined }
}

/** Ends a claim; false if the lease was lost or the webhook was deleted. */
export async function settle(trx: Trx, claimed: DeliveryRow, values: Partial<DeliveryRow>): Promise<boolean> {
  const result = await trx
    .updateTable('webhook_deliveries')
    .set({ ...values, lease_until: null })
    .where('id', '=', claimed.id)
    .where('lease_until', '=', claimed.lease_until)
    .executeTakeFirst()
  return result.numUpdatedRows > 0n
}

export const releaseAllLeases = (db: Db) =>
  db.updateTable('webhook_deliveries').set({ lease_until: null }).where('lease_until', 'is not', null).execute()
