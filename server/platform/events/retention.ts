// Data retention: deletes old rows and, by registered callbacks, old files, so that the data folder does not grow
// forever. Jobs with their events, the audit log and the daily usage sums are kept for good.
import { type RawBuilder, sql } from 'kysely'
import type { Logger } from 'pino'
import { runPeriodically } from '../../../lib/periodic.ts'
import { day_ms, hour_ms } from '../../../lib/utc-day.ts'
import type { Servers } from '../cluster/servers.ts'
import type { Db } from '../db/open.ts'
import type { Reserve } from '../storage/disk-reserve.ts'

/** How long the answer to a request with an Idempotency-Key is stored. */
export const idempotencyRetention_ms = day_ms

/** Small batches keep other writers from waiting long. */
const rowsPerStatement = 1000

interface Rule {
  table: string
  days: number
  /** The column with the age of a row, in unix milliseconds. */
  time: string
  /** The key column for deletion in batches; without it all rows go in one statement. */
  id?: string
  where?: RawBuilder<unknown>
}

const rules: Rule[] = [
  { table: 'idempotency_keys', days: idempotencyRetention_ms / day_ms, time: 'created_at' },
  { table: 'webhook_deliveries', days: 30, time: 'created_at', id: 'id' },
  {
    table: 'events',
    days: 30,
    time: 'created_at',
    id: 'id',
    where: sql`not exists (select 1 from webhook_deliveries where event_id = events.id)`,
  },
  { table: 'queue_entries', days: 7, time: 'created_at', id: 'id', where: sql`status in ('done', 'dead')` },
  // Their files are gone; their events are deleted with them.
  { table: 'exports', days: 30, time: 'created_at', id: 'id', where: sql`status in ('failed', 'expired')` },
  { table: 'uploads', days: 30, time: 'created_at', id: 'id', where: sql`status <> 'pending'` },
  // What has ended of Tinker's API, unless checkpoints are left of it.
  {
    table: 'tinker_samplers',
    days: 30,
    time: 'created_at',
    id: 'id',
    where: sql`exists (select 1 from tinker_sessions where id = session_id and ended_at is not null)`,
  },
  {
    table: 'tinker_runs',
    days: 30,
    time: 'last_request_at',
    id: 'id',
    where: sql`state = 'ended' and not exists (select 1 from tinker_checkpoints where run_id = tinker_runs.id)`,
  },
  {
    table: 'tinker_sessions',
    days: 30,
    time: 'last_seen_at',
    id: 'id',
    where: sql`ended_at is not null
      and not exists (select 1 from tinker_runs where session_id = tinker_sessions.id)
      and not exists (select 1 from tinker_samplers where session_id = tinker_sessions.id)`,
  },
  // A conversation that continues keeps its earlier responses.
  { table: 'responses', days: 30, time: 'used_at', id: 'id' },
  // Until then a row prevents its request from being counted twice; after that only the daily sums have it.
  { table: 'usage', days: 90, time: 'created_at', id: 'request_id' },
  { table: 'usage_figures', days: 8, time: 'at', where: sql`span = 'minute'` },
  { table: 'usage_figures', days: 91, time: 'at' },
  { table: 'share_days', days: 30, time: 'day' },
  { table: 'day_counts', days: 400, time: 'day' },
  { table: 'usage_notices', days: 400, time: 'period' },
]

/** Deletes the rows that have expired at `now`. */
export async function sweep(db: Db, now: number): Promise<void> {
  for (const { table, days, time, id, where = sql`true` } of rules) {
    const from = sql.table(table)
    const old = sql`${sql.ref(time)} < ${now - days * day_ms} and ${where}`
    if (!id) await sql`delete from ${from} where ${old}`.execute(db)
    else
      while (
        await deleteBatch(
          db,
          sql`delete from ${from} where ${sql.ref(id)} in
            (select ${sql.ref(id)} from ${from} where ${old} limit ${rowsPerStatement})`,
        )
      );
  }
}

/** Resolves with true if there may be more rows. */
const deleteBatch = async (db: Db, statement: RawBuilder<unknown>) =>
  ((await statement.execute(db)).numAffectedRows ?? 0n) === BigInt(rowsPerStatement)

/** Removes the files of a feature that have expired at `now`. */
type RemoveExpiredFiles = (now: number) => Promise<void>

/** Sweeps now and every hour. `close()` waits for the current sweep. */
export function startSweeping(
  { db, reserve, servers, log }: { db: Db; reserve: Pick<Reserve, 'use'>; servers: Servers; log: Logger },
  /** In which one server at a time removes what no other has, and in which each removes its own files. */
  { shared, own }: { shared: RemoveExpiredFiles[]; own: RemoveExpiredFiles[] },
): { close(): Promise<void> } {
  const attempt = (what: string, work: () => Promise<void>) =>
    reserve.use(work).catch((error) => log.warn({ err: error }, `${what}; the next sweep retries`))
  return runPeriodically(hour_ms, async () => {
    const now = Date.now()
    const removeFiles = async (removals: RemoveExpiredFiles[]) => {
      for (const remove of removals) await attempt('expired files could not be removed', () => remove(now))
    }
    await attempt('expired rows could not be deleted from the database', () =>
      servers.oncePer('sweep', hour_ms, async () => {
        await sweep(db, now)
        await removeFiles(shared)
      }),
    )
    await removeFiles(own)
  })
}
