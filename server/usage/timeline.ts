// Figures of the requests for one model name in buckets of time: sums and percentiles of the rows of single requests.
import { ApiError } from '../../contract/errors.ts'
import type { PeriodQuery, Timeline, TimelineStep } from '../../contract/timeline.ts'
import { day_ms, hour_ms, isoTime } from '../../lib/utc-day.ts'
import type { Db } from '../db/open.ts'
import { minute_ms } from './failures.ts'
import * as store from './timeline-store.ts'

const step_ms: Record<TimelineStep, number> = { minute: minute_ms, hour: hour_ms, day: day_ms }
const buckets_max = 1500
/** As long as the rows of single requests are kept. */
const period_ms_max = 90 * day_ms
/** Percentiles of more requests than this are of a part of them. */
const ranked_max = 100_000

type Figures = Timeline['total']

export async function timelineOf(
  db: Db,
  account_id: string,
  model: string,
  query: PeriodQuery,
  now: number,
): Promise<Timeline> {
  const period = periodOf(query, now)
  const { from, to, step } = period
  const [counted, failures] = [
    await store.sums(db, account_id, model, period),
    await store.failures(db, account_id, model, period),
  ]
  const answered = counted.reduce((sum, { requests }) => sum + requests, 0)
  const every = Math.ceil(answered / ranked_max)
  const ranks = { latency_ms: 'duration_ms', first_token_ms: 'first_token_ms' } as const
  const all = new Map<number, Figures>()
  const total = noFigures()
  for (let at = from; at < to; at += step) all.set((at - from) / step, noFigures())
  for (const { bucket, ...sums } of counted)
    for (const figures of [all.get(bucket)!, total]) {
      figures.requests += sums.requests
      figures.prompt_tokens += sums.prompt_tokens
      figures.completion_tokens += sums.completion_tokens
      figures.errors.client_left += sums.client_left
      figures.errors.broken += sums.broken
    }
  for (const { bucket, kind, requests } of failures)
    for (const figures of [all.get(bucket)!, total]) {
      figures.requests += requests
      figures.errors[kind] += requests
    }
  if (answered > 0)
    for (const name of ['latency_ms', 'first_token_ms'] as const) {
      const column = ranks[name]
      for (const { bucket, p50, p95 } of await store.percentiles(db, account_id, model, period, column, every))
        all.get(bucket)![name] = { p50, p95 }
      // One bucket as long as the period.
      const whole = { ...period, step: to - from }
      for (const { p50, p95 } of await store.percentiles(db, account_id, model, whole, column, every))
        total[name] = { p50, p95 }
    }
  return {
    model,
    from: isoTime(from),
    to: isoTime(to),
    step: period.name,
    buckets: [...all].map(([bucket, figures]) => ({ at: isoTime(from + bucket * step), ...figures })),
    total,
  }
}

const noFigures = (): Figures => ({
  requests: 0,
  errors: { client_left: 0, broken: 0, failed: 0, refused: 0, invalid: 0 },
  prompt_tokens: 0,
  completion_tokens: 0,
  latency_ms: null,
  first_token_ms: null,
})

/** Whole buckets. Throws invalid_request. */
function periodOf({ from, to, step }: PeriodQuery, now: number): store.Period & { name: TimelineStep } {
  const end = to === undefined ? now : Date.parse(to)
  const begin = from === undefined ? end - day_ms : Date.parse(from)
  const refuse = (message: string, param: string) => new ApiError('invalid_request', message, { param })
  if (begin >= end) throw refuse("'from' must be before 'to'.", 'from')
  const length = end - begin
  if (length > period_ms_max) throw refuse("From 'from' to 'to' can be at most 90 days.", 'from')
  const name = step ?? (length <= 3 * hour_ms ? 'minute' : length <= 7 * day_ms ? 'hour' : 'day')
  const each = step_ms[name]
  const first = begin - (begin % each)
  const buckets = Math.ceil((end - first) / each)
  if (buckets > buckets_max)
    throw refuse(`That is ${buckets} buckets; ${buckets_max} at most. Ask for less time or a longer step.`, 'step')
  return { name, from: first, to: first + buckets * each, step: each }
}
