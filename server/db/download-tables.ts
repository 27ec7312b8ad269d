/** The last download of each base model. */
export interface ModelDownloads {
  model_id: string
  status: 'queued' | 'downloading' | 'converting' | 'completed' | 'failed' | 'cancelled'
  /** The commit that is downloaded, so that a resumed download fetches the same one. */
  revision: string | null
  bytes: number
  total_bytes: number | null
  /** Consecutive attempts without progress. */
  failures: number
  error_json: string | null
  /** The account that requested it first. */
  account_id: string
  /** 1 if another account requested it too. */
  shared: 0 | 1
  created_at: number
  updated_at: number
}

/** Queued jobs without a queue entry yet: their base model is still being downloaded. */
export interface JobsAwaitingWeights {
  job_id: string
  model_id: string
}
