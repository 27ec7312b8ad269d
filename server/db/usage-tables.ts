// The tables of what was used; names and units as in schema.ts.

/** What one request of inference, or one job, used. */
export interface Usage {
  /** Of a job, its id. */
  request_id: string
  created_at: number
  account_id: string
  key_id: string
  /** The name that the client asked for, and the id of the model that it stood for. */
  model: string
  model_id: string
  kind: 'chat' | 'completion' | 'embedding' | 'training'
  prompt_tokens: number
  completion_tokens: number
  cached_tokens: number
  trained_tokens: number
  duration_ms: number
  /** By the prices of that time, in the currency of the settings. */
  cost: number
  finish: 'complete' | 'client_left' | 'broken' | 'failed' | 'cancelled'
}

/** The sums of `usage`, by the start of the UTC day. */
export interface UsageDays extends Omit<Usage, 'request_id' | 'created_at' | 'finish'> {
  day: number
  requests: number
}

/** What an account is told of when it is used up in part; null: its tier's limit, or none. */
export interface UsageThresholds {
  account_id: string
  requests_per_day: number | null
  tokens_per_month: number | null
  cost_per_month: number | null
  percents_json: string
}

/** Which thresholds were told of already. */
export interface UsageNotices {
  account_id: string
  metric: 'requests_per_day' | 'tokens_per_month' | 'cost_per_month'
  period: number
  bound: number
  percent: number
}

/** Requests of the API, by the start of the UTC day. */
export interface DayCounts {
  account_id: string
  day: number
  requests: number
}
