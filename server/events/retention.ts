// What has served its purpose is deleted after a time, so that the database does not grow without end. Kept for good:
// jobs with their events, the log of who did what, and the days' sums of usage.
import { type RawBuilder, sql } from 'kysely'
import type { Logger } from 'pino'
import { nowAndThen } from '../../lib/periodic.ts'
import { day_ms } from '../../lib/utc-day.ts'
import type { Db } from '../db/open.ts'
import { kept_ms } from '../http/idempotency-store.ts'
import type { Reserve } from '../storage/disk-space.ts'

const hour_ms = 3_600_000
/** Rows a statement: whoever else writes waits no longer than it takes. */
const rowsTogether = 1000

interface Rule {
  table: string
  days: number
  /** The column of the time that counts. */
  time: string
  /** The column by which a part of many rows is deleted at once. */
  id?: string
  where?: RawBuilder<unknown>
}

const rules: Rule[] = [
  { table: 'idempotency_keys', days: kept_ms / day_ms, time: 'created_at' },
  { table: 'webhook_deliveries', days: 30, time: 'created_at', id: 'id' },
  {
    table: 'events',
    days: 30,
    time: 'created_at',
    id: 'id',
    where: sql`not exists (select 1 from webhook_deliveries where event_id = events.id)`,
  },
  { table: 'queue_entries', days: 7, time: 'created_at', id: 'id', where: sql`status in ('done', 'dead')` },
  // What was made is gone; their events go with them.
  { table: 'exports', days: 30, time: 'created_at', id: 'id', where: sql`status in ('failed', 'expired')` },
  // A request is known by its row, so that none is counted twice; after this time it is in the sums alone.
  { table: 'usage', days: 90, time: 'created_at', id: 'request_id' },
  { table: 'day_counts', days: 400, time: 'day' },
  { table: 'usage_notices', days: 400, time: 'period' },
]

/** Deletes what is too old at `now`. */
export async function sweep(db: Db, now: number): Promise<void> {
  for (const { table, days, time, id, where = sql`true` } of rules) {
    const from = sql.table(table)
    const old = sql`${sql.ref(time)} < ${now - days * day_ms} and ${where}`
    if (!id) await sql`delete from ${from} where ${old}`.execute(db)
    else
      while (
        await deleteSome(
          db,
          sql`delete from ${from} where ${sql.ref(id)} in (select ${sql.ref(id)} from ${from} where ${old} limit ${rowsTogether})`,
        )
      );
  }
}

/** Resolves with whether there may be more. */
const deleteSome = async (db: Db, statement: RawBuilder<unknown>) =>
  ((await statement.execute(db)).numAffectedRows ?? 0n) === BigInt(rowsTogether)

/** Sweeps now and each hour, until what it returns is closed. */
export function startSweeping(db: Db, reserve: Reserve, log: Logger): { close(): Promise<void> } {
  const once = () =>
    reserve
      .use(() => sweep(db, Date.now()))
      .catch((error) =>
        log.warn({ err: error }, 'what is old could not be deleted from the database; it is tried again'),
      )
  return nowAndThen(hour_ms, once)
}
