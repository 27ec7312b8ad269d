import path from 'node:path'
import type { Batch } from '../../../contract/batches.ts'
import type { CursorQuery } from '../../../contract/files.ts'
import { unixSeconds } from '../../../lib/utc-day.ts'
import { fromJson } from '../../platform/db/json.ts'
import type { NeededBy } from '../../platform/db/needed-by.ts'
import type { Db, Queryable, Trx } from '../../platform/db/open.ts'
import { countRows, timedPage } from '../../platform/db/page.ts'
import type { NewRow, Row } from '../../platform/db/schema.ts'
import { recordEvent } from '../../platform/events/outbox.ts'

export type BatchRow = Row<'batches'>

/** When each status began, in unix milliseconds. */
export type Times = Partial<Record<Exclude<BatchRow['status'], 'validating'>, number>>

export const insert = (trx: Trx, batch: NewRow<'batches'>) => trx.insertInto('batches').values(batch).execute()

export const find = (db: Queryable, account_id: string, id: string) =>
  db.selectFrom('batches').selectAll().where('account_id', '=', account_id).where('id', '=', id).executeTakeFirst()

export const findUnscoped = (db: Queryable, id: string) =>
  db.selectFrom('batches').selectAll().where('id', '=', id).executeTakeFirst()

export const list = (db: Db, account_id: string, query: CursorQuery, after: BatchRow | undefined) =>
  timedPage(db.selectFrom('batches').selectAll().where('account_id', '=', account_id), query, after)

const active = ['validating', 'in_progress', 'finalizing', 'cancelling'] as const

export const isActive = ({ status }: Pick<BatchRow, 'status'>) => (active as readonly string[]).includes(status)

/** For the requests of a batch. */
export const batchNeedsFile: NeededBy = async (trx, _account_id, file_id) => {
  const batch = await trx
    .selectFrom('batches')
    .select('id')
    .where('input_file_id', '=', file_id)
    .where('status', 'in', active)
    .limit(1)
    .executeTakeFirst()
  return batch && `the batch '${batch.id}'`
}

export const update = (trx: Trx, id: string, values: Partial<BatchRow>) =>
  trx.updateTable('batches').set(values).where('id', '=', id).execute()

/** Sets a status and the time at which it began. */
export const setStatus = (trx: Trx, row: BatchRow, status: keyof Times, time: number, values: Partial<BatchRow> = {}) =>
  update(trx, row.id, { ...values, status, times_json: JSON.stringify({ ...timesOf(row), [status]: time }) })

/** Ends a batch and records the event. */
export async function end(
  trx: Trx,
  row: BatchRow,
  status: 'completed' | 'failed' | 'expired' | 'cancelled',
  time: number,
  values: Partial<BatchRow> = {},
): Promise<void> {
  await setStatus(trx, row, status, time, values)
  const { total, completed, failed, output_file_id, error_file_id, errors_json } = { ...row, ...values }
  const data =
    status === 'failed'
      ? { errors: (fromJson(errors_json) ?? []).slice(0, 10) }
      : { request_counts: { total, completed, failed }, output_file_id, error_file_id }
  await recordEvent(trx, row.account_id, `batch.${status}`, { batch_id: row.id, ...data }, time)
}

export const timesOf = (row: Pick<BatchRow, 'times_json'>) => fromJson(row.times_json)

const seconds = (time: number | undefined) => unixSeconds(time ?? null)

export function toResponse(row: BatchRow): Batch {
  const times = timesOf(row)
  const errors = fromJson(row.errors_json)
  return {
    id: row.id,
    object: 'batch',
    endpoint: row.endpoint,
    ...(row.model !== null && { model: row.model }),
    errors: errors && { object: 'list', data: errors },
    input_file_id: row.input_file_id,
    completion_window: '24h',
    status: row.status,
    output_file_id: row.output_file_id,
    error_file_id: row.error_file_id,
    created_at: unixSeconds(row.created_at),
    in_progress_at: seconds(times.in_progress),
    expires_at: unixSeconds(row.expires_at),
    finalizing_at: seconds(times.finalizing),
    completed_at: seconds(times.completed),
    failed_at: seconds(times.failed),
    expired_at: seconds(times.expired),
    cancelling_at: seconds(times.cancelling),
    cancelled_at: seconds(times.cancelled),
    request_counts: { total: row.total, completed: row.completed, failed: row.failed },
    usage: {
      input_tokens: row.prompt_tokens,
      input_tokens_details: { cached_tokens: row.cached_tokens },
      output_tokens: row.completion_tokens,
      output_tokens_details: { reasoning_tokens: 0 },
      total_tokens: row.prompt_tokens + row.completion_tokens,
    },
    metadata: fromJson(row.metadata_json),
  }
}

/** The folder of a batch's unfinished result files. */
const batchesDir = (dataDir: string) => path.join(dataDir, 'batches')
/** The artifact of a batch's results so far. */
export const batchKey = (id: string) => `${batchDir('', id)}/`
export const batchDir = (dataDir: string, id: string) => path.join(batchesDir(dataDir), id)

/** How many batches of an account have not ended. */
export const countActive = (trx: Trx, account_id: string): Promise<number> =>
  countRows(trx.selectFrom('batches').where('account_id', '=', account_id).where('status', 'in', active))
