// Adds usage rows to the database, with their daily sums and the threshold events that they cause.
import { startOfDay } from '../../../lib/utc-day.ts'
import type { Trx } from '../../platform/db/open.ts'
import type { NewRow } from '../../platform/db/schema.ts'
import { createSpanSums } from './figures.ts'
import type { UsageRow } from './journal.ts'
import { addToDays, addToFigures, insert, sums } from './store.ts'
import { notifyMonthlyThresholds } from './thresholds.ts'

/** Each row has a dozen parameters, and a database limits the parameters of a statement. */
const rowsPerStatement = 50

/**
 * Adds rows, their daily sums, their figures by minute and hour, and the threshold events they cause. Rows that are
 * already there change nothing.
 */
export async function addUsage(trx: Trx, rows: Iterable<UsageRow>, at: number): Promise<void> {
  const days = new Map<string, NewRow<'usage_days'>>()
  const figures = createSpanSums()
  for (const batch of batches(rows, rowsPerStatement)) {
    const added = await insert(trx, batch)
    for (const row of batch) {
      if (!added.has(row.request_id)) continue
      addTo(days, row)
      if (row.kind !== 'training') figures.addRow(row)
    }
  }
  for (const batch of batches(days.values(), rowsPerStatement)) await addToDays(trx, batch)
  await addToFigures(trx, figures.all())
  const accounts = Map.groupBy(days.values(), ({ account_id }) => account_id)
  for (const [account_id, usage] of accounts)
    await notifyMonthlyThresholds(
      trx,
      account_id,
      usage.map(({ day }) => day),
      at,
    )
}

function addTo(days: Map<string, NewRow<'usage_days'>>, row: UsageRow): void {
  const { request_id: _, created_at, finish: __, first_token_ms: ___, ...counts } = row
  const day = startOfDay(created_at)
  const key = JSON.stringify([row.account_id, day, row.model, row.model_id, row.key_id, row.kind])
  const counted = days.get(key)
  if (!counted) days.set(key, { ...counts, day, requests: 1 })
  else for (const sum of sums) counted[sum] += sum === 'requests' ? 1 : row[sum]
}

function* batches<T>(items: Iterable<T>, most: number): Generator<T[]> {
  let batch: T[] = []
  for (const item of items) {
    batch.push(item)
    if (batch.length < most) continue
    yield batch
    batch = []
  }
  if (batch.length > 0) yield batch
}
