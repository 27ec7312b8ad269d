import type { Generated, Insertable, Selectable } from 'kysely'
import type { Role } from '../../contract/scopes.ts'
import type { JobsAwaitingWeights, ModelDownloads } from './download-tables.ts'
import type { ExportEvents, ExportRepositories, Exports } from './export-tables.ts'
import type { DayCounts, Usage, UsageDays, UsageNotices, UsageThresholds } from './usage-tables.ts'

// Times are unix milliseconds. Columns ending in _json hold JSON text. Names are the wire's own, so nothing maps
// between spellings.

interface Accounts {
  id: string
  name: string
  tier: string
  /** Since when it is refused; null where it is not. */
  suspended_at: number | null
  created_at: number
}

interface Users {
  id: string
  account_id: string
  name: string
  email: string | null
  role: Role
  /** Since when they are no member any more. */
  removed_at: number | null
  created_at: number
}

interface ApiKeys {
  id: string
  account_id: string
  user_id: string
  name: string
  /** The first characters of the key: finds the row, and tells keys apart in lists. */
  prefix: string
  /** SHA-256 of the whole key, in hex. */
  hash: string
  scopes_json: string
  created_at: number
  expires_at: number | null
  revoked_at: number | null
  /** To the minute. */
  last_used_at: number | null
}

/** Who did what. */
interface Audit {
  /** In the order of what was done, also within a millisecond. */
  seq: Generated<number>
  id: string
  account_id: string
  created_at: number
  action: string
  target: string
  details_json: string
  kind: 'key' | 'operator' | 'command_line' | 'service'
  user_id: string | null
  key_id: string | null
}

interface Datasets {
  id: string
  account_id: string
  name: string
  description: string
  format: 'jsonl' | 'csv' | 'parquet' | 'huggingface'
  rows: number
  size_bytes: number
  sha256: string
  /** SHA-256 of the rows in their canonical form; null until they have been made. */
  rows_sha256: string | null
  status: 'preparing' | 'ready' | 'unreadable'
  /** What was found in it: a check of its rows, or why it cannot be read. */
  check_json: string
  created_at: number
}

/** What a dataset is in the tokens of a base: counted once. */
interface DatasetTokens {
  dataset_id: string
  base_model_id: string
  found_json: string
}

/** What people may change of a thing at any time. */
interface Labelled {
  name: string
  description: string
  metadata_json: string
}

interface TuningJobs extends Labelled {
  id: string
  account_id: string
  model_id: string
  base_model_id: string
  /** The model of the account that it goes on from, as it was then. */
  parent_json: string | null
  /** Its method and epochs, and its datasets as they were then. */
  recipe_json: string
  dataset_id: string
  status: 'queued' | 'running' | 'completed' | 'failed' | 'cancelled'
  progress: number
  current_epoch: number
  metrics_json: string
  estimated_completion: number | null
  config_json: string
  resolved_config_json: string
  /** Frozen in the job: an exact resume needs the same number. */
  threads: number
  error_json: string | null
  trained_tokens: number
  /** The key that it was made with. */
  key_id: string
  /** How long its trainers ran, and since when one runs. */
  ran_ms: number
  running_since: number | null
  validation_dataset_id: string | null
  /** 1 where a person asked that it wait until it is told to go on. */
  paused: 0 | 1
  /** How often its trainer died since the last checkpoint. */
  crashes: number
  /** Of a running job: what keeps it from the processor. */
  slowed_by: 'serving' | 'other_work' | null
  model: string | null
  created_at: number
  started_at: number | null
  finished_at: number | null
}

export interface JobEvents {
  job_id: string
  seq: number
  type: 'status' | 'progress' | 'metrics' | 'checkpoint' | 'sample' | 'log' | 'warning' | 'error'
  message: string
  data_json: string | null
  created_at: number
}

/** A state of a job on its held-out rows; an attempt that goes on from before replaces what it does again. */
interface JobEvaluations {
  job_id: string
  step: number
  data_json: string
  created_at: number
}

interface Models extends Labelled {
  id: string
  account_id: string
  /** The base of the hub that it stands on, or was made from. */
  base_model_id: string
  kind: 'adapter' | 'model'
  /** The model of the account that it went on from, which may be deleted by now. */
  parent_model_id: string | null
  /** The tuned model whose whole weights an adapter stands on, where these are not the base's. */
  weights_model_id: string | null
  job_id: string | null
  method: 'lora' | 'qlora' | 'full'
  /** The training's step whose weights these are, and their loss on the held-out rows. */
  step: number | null
  validation_loss: number | null
  /** SHA-256 of the file that the engine serves. */
  gguf_sha256: string
  /** What the comparison of engine and trainer found, once it has been made. */
  comparison_json: string | null
  size_bytes: number
  created_at: number
}

interface Deployments {
  id: string
  account_id: string
  name: string
  model: string
  status: 'starting' | 'ready' | 'failed' | 'stopped'
  error_json: string | null
  created_at: number
  updated_at: number
}

interface QueueEntries {
  id: Generated<number>
  kind: string
  /** The id of what is to be worked on; one live entry a kind and ref. */
  ref: string
  status: 'waiting' | 'leased' | 'done' | 'dead'
  run_at: number
  attempt: number
  /** Who holds the lease, and until when. */
  worker: string | null
  lease_until: number | null
  created_at: number
}

interface Events {
  id: string
  account_id: string
  type: string
  data_json: string
  created_at: number
}

interface Webhooks {
  id: string
  account_id: string
  url: string
  events_json: string
  /** The secrets in force, oldest first, each encrypted, and until when it is; null of the newest alone. */
  secrets_json: string
  disabled_at: number | null
  disabled_reason: 'requested' | 'gone' | 'failing' | null
  /** How many tries in a row have failed, since when, and until when none is made. */
  failures: number
  failing_since: number | null
  slowed_until: number | null
  created_at: number
  updated_at: number
}

/** An event on its way to one webhook. */
interface WebhookDeliveries {
  id: string
  account_id: string
  webhook_id: string
  event_id: string
  type: string
  status: 'pending' | 'delivered' | 'failed' | 'blocked_address'
  attempts: number
  /** When it is to be tried; null when it has ended. */
  next_attempt_at: number | null
  /** Until when whoever tries it may; it also tells one claim from the next. */
  lease_until: number | null
  created_at: number
}

/** One try at a delivery. */
interface WebhookAttempts {
  delivery_id: string
  number: number
  started_at: number
  duration_ms: number
  response_status: number | null
  /** The first kB of the answer. */
  response_body: string | null
  error_json: string | null
}

/** What was created under an Idempotency-Key, and the answer to it, which may hold a secret. */
interface IdempotencyKeys {
  account_id: string
  key: string
  fingerprint: string
  target: string
  answer_sealed: string | null
  created_at: number
}

interface Migrations {
  name: string
  applied_at: number
}

export interface Schema {
  accounts: Accounts
  users: Users
  api_keys: ApiKeys
  audit: Audit
  datasets: Datasets
  dataset_tokens: DatasetTokens
  tuning_jobs: TuningJobs
  job_events: JobEvents
  jobs_awaiting_weights: JobsAwaitingWeights
  model_downloads: ModelDownloads
  job_evaluations: JobEvaluations
  models: Models
  deployments: Deployments
  exports: Exports
  export_events: ExportEvents
  export_repositories: ExportRepositories
  queue_entries: QueueEntries
  events: Events
  usage: Usage
  usage_days: UsageDays
  usage_thresholds: UsageThresholds
  usage_notices: UsageNotices
  day_counts: DayCounts
  idempotency_keys: IdempotencyKeys
  webhooks: Webhooks
  webhook_deliveries: WebhookDeliveries
  webhook_attempts: WebhookAttempts
  migrations: Migrations
}

export type Row<T extends keyof Schema> = Selectable<Schema[T]>
export type NewRow<T extends keyof Schema> = Insertable<Schema[T]>
