/** The last download of each base model. */
export interface ModelDownloads {
  model_id: string
  status: 'queued' | 'downloading' | 'converting' | 'completed' | 'failed' | 'cancelled'
  /** The commit that is downloaded, so that a resumed download takes the files of the same one. */
  revision: string | null
  bytes: number
  total_bytes: number | null
  /** Tries in a row that brought nothing new. */
  failures: number
  error_json: string | null
  /** Who asked first. */
  account_id: string
  /** 1 where another account has asked for it as well. */
  shared: 0 | 1
  created_at: number
  updated_at: number
}

/** Queued jobs that are no work of the queue yet: the weights of their base are being downloaded. */
export interface JobsAwaitingWeights {
  job_id: string
  model_id: string
}
