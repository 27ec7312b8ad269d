// Figures of the requests for one model name in buckets of time.
import { ApiError } from '../../../contract/errors.ts'
import type { PeriodQuery, Timeline, TimelineStep } from '../../../contract/timeline.ts'
import { day_ms, hour_ms, isoTime } from '../../../lib/utc-day.ts'
import type { Db } from '../../platform/db/open.ts'
import { addFigures, type Figures, figuresOf, minute_ms, noFigures, percentilesOf } from './figures.ts'
import * as store from './store.ts'

const step_ms: Record<TimelineStep, number> = { minute: minute_ms, hour: hour_ms, day: day_ms }
const buckets_max = 1500
const period_ms_max = 90 * day_ms
/** As long as the figures by minute are kept. */
const minutes_ms = 7 * day_ms

export async function timelineOf(
  db: Db,
  account_id: string,
  model: string,
  query: PeriodQuery,
  now: number,
): Promise<Timeline> {
  const { name, from, to } = periodOf(query, now)
  const step = step_ms[name]
  const buckets = Array.from({ length: (to - from) / step }, noFigures)
  const total = noFigures()
  for (const row of await store.figures(db, account_id, model, name === 'minute' ? 'minute' : 'hour', from, to)) {
    const figures = figuresOf(row)
    addFigures(buckets[Math.floor((row.at - from) / step)]!, figures)
    addFigures(total, figures)
  }
  return {
    model,
    from: isoTime(from),
    to: isoTime(to),
    step: name,
    buckets: buckets.map((figures, index) => ({ at: isoTime(from + index * step), ...toResponse(figures) })),
    total: toResponse(total),
  }
}

function toResponse(figures: Figures): Timeline['total'] {
  const { requests, prompt_tokens, completion_tokens, latency, first_token, ...errors } = figures
  return {
    requests,
    errors,
    prompt_tokens,
    completion_tokens,
    latency_ms: percentilesOf(latency),
    first_token_ms: percentilesOf(first_token),
  }
}

/** Whole buckets, in unix milliseconds. Throws invalid_request. */
function periodOf(query: PeriodQuery, now: number): { name: TimelineStep; from: number; to: number } {
  const end = query.to === undefined ? now : Date.parse(query.to)
  const begin = query.from === undefined ? end - day_ms : Date.parse(query.from)
  const refuse = (message: string, param: string) => new ApiError('invalid_request', message, { param })
  if (begin >= end) throw refuse("'from' must be before 'to'.", 'from')
  const length = end - begin
  if (length > period_ms_max) throw refuse("From 'from' to 'to' can be at most 90 days.", 'from')
  const hasMinutes = begin >= now - minutes_ms
  const name = query.step ?? (length <= 3 * hour_ms && hasMinutes ? 'minute' : length <= 7 * day_ms ? 'hour' : 'day')
  if (name === 'minute' && !hasMinutes)
    throw refuse('Figures by minute are kept for 7 days. Ask for a later period, or for hours.', 'step')
  const step = step_ms[name]
  const from = begin - (begin % step)
  const buckets = Math.ceil((end - from) / step)
  if (buckets > buckets_max)
    throw refuse(`That is ${buckets} buckets; ${buckets_max} at most. Ask for less time or a longer step.`, 'step')
  return { name, from, to: from + buckets * step }
}
