import { startOfDay } from '../days.ts'
import type { Trx } from '../db/open.ts'
import type { NewRow } from '../db/schema.ts'
import type { UsageRow } from './record.ts'
import * as store from './store.ts'
import { tellOfMonths } from './thresholds.ts'

/** Most rows in one statement: each brings a dozen parameters, which a database bounds. */
const rowsTogether = 50

/** Adds rows, their days' sums, and what their accounts are to be told of. Rows that are there already change nothing. */
export async function addUsage(trx: Trx, rows: Iterable<UsageRow>, at: number): Promise<void> {
  const days = new Map<string, NewRow<'usage_days'>>()
  for (const batch of batches(rows, rowsTogether)) {
    const added = await store.insert(trx, batch)
    for (const row of batch) if (added.has(row.request_id)) addTo(days, row)
  }
  for (const batch of batches(days.values(), rowsTogether)) await store.addToDays(trx, batch)
  const accounts = Map.groupBy(days.values(), ({ account_id }) => account_id)
  for (const [account_id, each] of accounts)
    await tellOfMonths(
      trx,
      account_id,
      each.map(({ day }) => day),
      at,
    )
}

function addTo(days: Map<string, NewRow<'usage_days'>>, row: UsageRow): void {
  const { request_id: _, created_at, finish: __, ...sums } = row
  const day = startOfDay(created_at)
  const key = JSON.stringify([row.account_id, day, row.model, row.model_id, row.key_id, row.kind])
  const known = days.get(key)
  if (!known) days.set(key, { ...sums, day, requests: 1 })
  else for (const sum of store.sums) known[sum] += sum === 'requests' ? 1 : row[sum]
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
