// Tables of exports. Names and units as in schema.ts.

export interface Exports {
  id: string
  account_id: string
  model_id: string
  format: 'huggingface' | 'gguf' | 'onnx'
  quantization: string | null
  /** 0 if the adapter alone is exported. */
  merge: 0 | 1
  archive: 'tar' | 'zip' | null
  /** Hub repository that the files are pushed to. */
  push_to: string | null
  status: 'queued' | 'running' | 'ready' | 'failed' | 'expired'
  stage: string | null
  progress: number
  /** Name, size and hash of each file, once the export is ready. */
  files_json: string
  /** Result of the comparison with the trainer's answers, once made. */
  check_json: string | null
  push_json: string | null
  error_json: string | null
  /** How often a process that made it crashed. */
  crashes: number
  /** How often the server ended while it was made. */
  interruptions: number
  created_at: number
  started_at: number | null
  finished_at: number | null
  /** When its files are removed; null: only on deletion. */
  expires_at: number | null
}

/** A hub repository, in lower case, and the account whose export created it. */
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
