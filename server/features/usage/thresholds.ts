// Usage thresholds: an event when an account has used a percentage of a limit, once per period, in the transaction that
// counts the usage.

import type { Thresholds } from '../../../contract/usage.ts'
import { day_ms, isoTime } from '../../../lib/utc-day.ts'
import { fromJson } from '../../platform/db/json.ts'
import type { Db, Queryable, Trx } from '../../platform/db/open.ts'
import type { Row } from '../../platform/db/schema.ts'
import { recordEvent } from '../../platform/events/outbox.ts'
import type { CountListener } from '../../platform/limits/index.ts'
import * as store from './store.ts'

export type Metric = Row<'usage_notices'>['metric']

const defaultThresholds: Thresholds = {
  requests_per_day: null,
  tokens_per_month: null,
  cost_per_month: null,
  percents: [80, 100],
}

export async function thresholdsOf(db: Queryable, account_id: string): Promise<Thresholds> {
  const row = await store.thresholds(db, account_id)
  if (!row) return defaultThresholds
  const { requests_per_day, tokens_per_month, cost_per_month, percents_json } = row
  return { requests_per_day, tokens_per_month, cost_per_month, percents: fromJson(percents_json) }
}

/** The percents of a bound that are reached. */
const reachedPercents = (used: number, bound: number, percents: readonly number[]) =>
  percents.filter((percent) => used * 100 >= bound * percent)

/** Records an event for each percent that is newly reached in this period. */
async function notifyThresholds(
  trx: Trx,
  account_id: string,
  {
    metric,
    from,
    to,
    used,
    bound,
    percents,
  }: { metric: Metric; from: number; to: number; used: number; bound: number; percents: readonly number[] },
  at: number,
): Promise<void> {
  for (const percent of reachedPercents(used, bound, percents)) {
    if (!(await store.addNotice(trx, { account_id, metric, period: from, bound, percent }))) continue
    const period = { from: isoTime(from), to: isoTime(to) }
    await recordEvent(trx, account_id, 'usage.threshold', { metric, percent, threshold: bound, used, period }, at)
  }
}

/** Checks the thresholds of the requests of a day each time that they are counted. */
export function createDayThresholds(db: Db, now: () => number): CountListener {
  /** The last thresholds reached per account: while they are unchanged, nothing is written. */
  const lastNotified = new Map<string, string>()
  return async (account_id, from, used, limit) => {
    const { requests_per_day, percents } = await thresholdsOf(db, account_id)
    const bound = requests_per_day ?? limit
    if (bound === null) return
    const reachedNow = `${from} ${bound} ${reachedPercents(used, bound, percents)}`
    if (lastNotified.get(account_id) === reachedNow) return
    const period = { metric: 'requests_per_day' as const, from, to: from + day_ms, used, bound, percents }
    await db.transaction().execute((trx) => notifyThresholds(trx, account_id, period, now()))
    lastNotified.set(account_id, reachedNow)
  }
}

/** Start and end of the UTC month of a time. */
function monthOf(time: number): { from: number; to: number } {
  const date = new Date(time)
  return {
    from: Date.UTC(date.getUTCFullYear(), date.getUTCMonth()),
    to: Date.UTC(date.getUTCFullYear(), date.getUTCMonth() + 1),
  }
}

/** Checks the monthly thresholds for the months of these days. */
export async function notifyMonthlyThresholds(
  trx: Trx,
  account_id: string,
  days: readonly number[],
  at: number,
): Promise<void> {
  const { tokens_per_month, cost_per_month, percents } = await thresholdsOf(trx, account_id)
  if (tokens_per_month === null && cost_per_month === null) return
  for (const start of new Set(days.map((day) => monthOf(day).from))) {
    const { from, to } = monthOf(start)
    const { prompt_tokens, completion_tokens, trained_tokens, cost } = await store.total(trx, account_id, from, to)
    const used = { tokens_per_month: prompt_tokens + completion_tokens + trained_tokens, cost_per_month: cost }
    for (const [metric, bound] of Object.entries({ tokens_per_month, cost_per_month }) as [
      keyof typeof used,
      number | null,
    ][])
      if (bound !== null)
        await notifyThresholds(trx, account_id, { metric, from, to, used: used[metric], bound, percents }, at)
  }
}
