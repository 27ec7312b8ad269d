// Figures of requests for a model name, added up by minute and by hour.
import { fromJson } from '../../platform/db/json.ts'
import type { Row } from '../../platform/db/schema.ts'
import type { UsageRow } from './journal.ts'

export const minute_ms = 60_000
const hour_ms = 60 * minute_ms
const spans = { minute: minute_ms, hour: hour_ms } as const
export type Span = keyof typeof spans

/** Counts of durations by bin. A bin is some 5 % wide, so that a percentile is off by half of that at most. */
export type Histogram = Record<string, number>
const width = Math.log(1.05)

const addDuration = (histogram: Histogram, ms: number) => {
  const bin = ms < 1 ? -1 : Math.round(Math.log(ms) / width)
  histogram[bin] = (histogram[bin] ?? 0) + 1
}

/** The nearest-rank percentiles in milliseconds; null without a duration. */
export function percentilesOf(histogram: Histogram): { p50: number; p95: number } | null {
  const bins = Object.entries(histogram)
    .map(([bin, count]) => [Number(bin), count] as const)
    .sort(([a], [b]) => a - b)
  const total = bins.reduce((sum, [, count]) => sum + count, 0)
  if (total === 0) return null
  const at = (share: number) => {
    let seen = 0
    const [bin] = bins.find(([, count]) => {
      seen += count
      return seen >= total * share
    })!
    return bin < 0 ? 0 : Math.round(Math.exp(bin * width))
  }
  return { p50: at(0.5), p95: at(0.95) }
}

const counts = [
  'requests',
  'client_left',
  'broken',
  'failed',
  'refused',
  'invalid',
  'prompt_tokens',
  'completion_tokens',
] as const
export type FailureKind = 'failed' | 'refused' | 'invalid'

export type Figures = Record<(typeof counts)[number], number> & { latency: Histogram; first_token: Histogram }

export const noFigures = (): Figures => ({
  ...(Object.fromEntries(counts.map((name) => [name, 0])) as Record<(typeof counts)[number], number>),
  latency: {},
  first_token: {},
})

/** Adds `more` to `figures`. */
export function addFigures(figures: Figures, more: Figures): void {
  for (const name of counts) figures[name] += more[name]
  for (const name of ['latency', 'first_token'] as const)
    for (const [bin, count] of Object.entries(more[name])) figures[name][bin] = (figures[name][bin] ?? 0) + count
}

/** Figures of one account's requests for one name, from `at` on. */
export interface SpanFigures extends Figures {
  account_id: string
  model: string
  span: Span
  at: number
}

/** Sums by account, name, minute and hour. */
export function createSpanSums() {
  const sums = new Map<string, SpanFigures>()
  /** Adds to the minute and to the hour of `time`. */
  function add(account_id: string, model: string, time: number, into: (figures: Figures) => void): void {
    for (const span of ['minute', 'hour'] as const) {
      const at = time - (time % spans[span])
      const key = JSON.stringify([account_id, model, span, at])
      let sum = sums.get(key)
      if (!sum) {
        sum = { account_id, model, span, at, ...noFigures() }
        sums.set(key, sum)
      }
      into(sum)
    }
  }
  return {
    all: () => [...sums.values()],
    get size() {
      return sums.size
    },
    addFailure: (account_id: string, model: string, kind: FailureKind, time: number, requests = 1) =>
      add(account_id, model, time, (figures) => {
        figures.requests += requests
        figures[kind] += requests
      }),
    addRow: (row: UsageRow) =>
      add(row.account_id, row.model, row.created_at, (figures) => {
        figures.requests++
        figures.prompt_tokens += row.prompt_tokens
        figures.completion_tokens += row.completion_tokens
        if (row.finish === 'client_left' || row.finish === 'broken') figures[row.finish]++
        if (row.finish !== 'complete') return
        addDuration(figures.latency, row.duration_ms)
        if (row.first_token_ms != null) addDuration(figures.first_token, row.first_token_ms)
      }),
  }
}

/** The figures of a row of the database. */
export function figuresOf({ latency_json, first_token_json, ...row }: Row<'usage_figures'>): Figures {
  const numbers = Object.fromEntries(counts.map((name) => [name, Number(row[name])])) as Omit<
    Figures,
    'latency' | 'first_token'
  >
  return { ...numbers, latency: fromJson(latency_json), first_token: fromJson(first_token_json) }
}

export function toRow({ latency, first_token, ...rest }: SpanFigures): Row<'usage_figures'> {
  return { ...rest, latency_json: JSON.stringify(latency), first_token_json: JSON.stringify(first_token) }
}
