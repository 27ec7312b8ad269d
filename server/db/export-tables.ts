// The tables of what is made of models to be taken away; names and units as in schema.ts.

export interface Exports {
  id: string
  account_id: string
  model_id: string
  format: 'huggingface' | 'gguf' | 'onnx'
  quantization: string | null
  /** 0 where the adapter alone is taken. */
  merge: 0 | 1
  archive: 'tar' | 'zip' | null
  /** A repository of the hub that gets the files too. */
  push_to: string | null
  status: 'queued' | 'running' | 'ready' | 'failed' | 'expired'
  stage: string | null
  progress: number
  /** Name, size and hash of each file, once it is ready. */
  files_json: string
  /** What the comparison with the training found, once it has been made. */
  check_json: string | null
  push_json: string | null
  error_json: string | null
  /** How often the making died. */
  crashes: number
  /** How often the service died while it was made. */
  interruptions: number
  created_at: number
  started_at: number | null
  finished_at: number | null
  /** When its files are to be removed; null: not of themselves. */
  expires_at: number | null
}

/** A repository of the hub, in lower case, and the account whose export made it. */
export interface ExportRepositories {
  repository: string
  account_id: string
}

export interface ExportEvents {
  export_id: string
  seq: number
  type: 'status' | 'progress' | 'log' | 'warning' | 'error'
  message: string
  data_json: string | null
  created_at: number
}
