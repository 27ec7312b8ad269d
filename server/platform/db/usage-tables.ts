// Tables of usage. Names and units as in schema.ts.

import type { Json } from './json.ts'

/** Usage of one inference request or one job. */
export interface Usage {
  /** For a job, its id. */
  request_id: string
  created_at: number
  account_id: string
  key_id: string
  /** The model name in the request, and the id of the model that it resolved to. */
  model: string
  model_id: string
  kind: 'chat' | 'completion' | 'embedding' | 'training'
  prompt_tokens: number
  completion_tokens: number
  cached_tokens: number
  trained_tokens: number
  duration_ms: number
  /** From the request to the first token of a streamed answer. */
  first_token_ms: number | null
  /** By the prices at that time, in the configured currency. */
  cost: number
  finish: 'complete' | 'client_left' | 'broken' | 'failed' | 'cancelled'
}

/** Sums of `usage` per UTC day; `day` is its start. */
export interface UsageDays extends Omit<Usage, 'request_id' | 'created_at' | 'finish' | 'first_token_ms'> {
  day: number
  requests: number
}

/** Figures of an account's requests for a model name, per UTC minute and per UTC hour; `at` is its start. */
export interface UsageFigures {
  account_id: string
  model: string
  span: 'minute' | 'hour'
  at: number
  /** Answered and failed ones. */
  requests: number
  client_left: number
  broken: number
  failed: number
  refused: number
  invalid: number
  prompt_tokens: number
  completion_tokens: number
  /** Histograms of the milliseconds of complete answers; see server/features/usage/figures.ts. */
  latency_json: Json<Record<string, number>>
  first_token_json: Json<Record<string, number>>
}

/** Usage limits that an account is notified about at the given percentages; null: its tier's limit, or none. */
export interface UsageThresholds {
  account_id: string
  requests_per_day: number | null
  tokens_per_month: number | null
  cost_per_month: number | null
  percents_json: Json<number[]>
}

/** Threshold notifications that were already sent. */
export interface UsageNotices {
  account_id: string
  metric: 'requests_per_day' | 'tokens_per_month' | 'cost_per_month'
  period: number
  bound: number
  percent: number
}

/** API requests per UTC day; `day` is its start. */
export interface DayCounts {
  account_id: string
  day: number
  requests: number
}
