import type { Generated, Insertable, Selectable } from 'kysely'
import type { BatchError } from '../../../contract/batches.ts'
import type { ChatRequest, ChatResponse } from '../../../contract/chat.ts'
import type { Metadata } from '../../../contract/common.ts'
import type { Columns } from '../../../contract/datasets.ts'
import type { Deployment } from '../../../contract/deployments.ts'
import type { ErrorText } from '../../../contract/errors.ts'
import type { CreateEvaluation, Evaluation, EvaluationAnswer } from '../../../contract/evaluations.ts'
import type { Export, ExportCheck, ExportFile } from '../../../contract/exports.ts'
import type { JobMetrics, ResolvedConfig } from '../../../contract/fine-tuning.ts'
import type { Grader, GradingLimits } from '../../../contract/graders.ts'
import type { JobConfig } from '../../../contract/job-config.ts'
import type { JobEvaluation, RolloutStep, StepRollouts } from '../../../contract/job-history.ts'
import type { Comparison, TrainedWith } from '../../../contract/models.ts'
import type { SourceConfig } from '../../../contract/openai-evals.ts'
import type { InputItem, Response } from '../../../contract/responses.ts'
import type { Role, Scope } from '../../../contract/scopes.ts'
import type { DeliveryAttempt } from '../../../contract/webhooks.ts'
import type { Json } from './json.ts'
import type { DayCounts, Usage, UsageDays, UsageFigures, UsageNotices, UsageThresholds } from './usage-tables.ts'

// Times are unix milliseconds. Columns have the names of the API's JSON fields. Those ending in _json hold JSON text:
// `fromJson` reads a column that names its type, and one function of its feature a column that does not.

interface Accounts {
  id: string
  name: string
  tier: string
  /** When it was suspended; null if it is not. */
  suspended_at: number | null
  created_at: number
}

interface Users {
  id: string
  account_id: string
  name: string
  email: string | null
  /** When a provider proved that the email is the member's; null if anybody may have entered it. */
  email_accepted_at: number | null
  role: Role
  /** When they were removed from the account. */
  removed_at: number | null
  /** 1: in a session they may do what the scope operator allows. */
  operator: Generated<number>
  created_at: number
}

interface Passwords {
  user_id: string
  /** Argon2id in PHC form. */
  hash: string
  set_at: number
}

interface Sessions {
  id: string
  account_id: string
  user_id: string
  /** SHA-256 of the token, in hex. */
  hash: string
  begun_by: 'link' | 'password' | 'passkey' | 'oidc' | 'invitation'
  user_agent: string
  address: string
  created_at: number
  /** To the minute. */
  last_used_at: number
}

/** What works once: sign-in links, invitations, challenges of passkeys. */
interface SignInTokens {
  id: string
  kind: 'link' | 'invitation' | 'challenge'
  hash: string
  /** Null for the challenge of a sign-in. */
  account_id: string | null
  user_id: string | null
  /** The member who invites. */
  invited_by: string | null
  /** The key with which they invite; null in a session. */
  key_id: string | null
  created_at: number
  expires_at: number
}

interface Passkeys {
  id: string
  user_id: string
  /** Base64url, as browsers write it. */
  credential_id: string
  name: string
  /** COSE, in base64url. */
  public_key: string
  counter: number
  transports_json: Json<string[]>
  created_at: number
  last_used_at: number | null
}

interface OidcIdentities {
  issuer: string
  subject: string
  user_id: string
  /** What the provider verified when it was bound; null for earlier ones. */
  email: string | null
  created_at: number
}

interface ApiKeys {
  id: string
  account_id: string
  user_id: string
  name: string
  /** The first characters of the key: used to look up the row, and shown in lists. */
  prefix: string
  /** SHA-256 of the whole key, in hex. */
  hash: string
  scopes_json: Json<Scope[]>
  created_at: number
  expires_at: number | null
  revoked_at: number | null
  /** To the minute. */
  last_used_at: number | null
}

/** The audit log: who did what. */
interface Audit {
  /** Orders entries, also within a millisecond. */
  seq: Generated<number>
  id: string
  account_id: string
  created_at: number
  action: string
  target: string
  details_json: Json<Record<string, unknown>>
  kind: 'key' | 'session' | 'operator' | 'command_line' | 'service'
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
  /** Size of the rows' file; 0 until it exists, and for rows that an earlier version wrote. */
  rows_bytes: Generated<number>
  /** SHA-256 of the rows; null until these exist. */
  rows_sha256: string | null
  /** 0: an earlier version wrote the rows; 1: they are canonical. */
  rows_form: Generated<number>
  /** SHA-256 of the rows before they became canonical: checkpoints know them by it. */
  earlier_rows_sha256: Generated<string | null>
  /** The file of the upload, where it is not ID.FORMAT. */
  source_name: Generated<string | null>
  /** The uploader's names of the columns. */
  columns_json: Generated<Json<Columns> | null>
  status: 'preparing' | 'ready' | 'unreadable'
  /** Result of checking its rows, or why the file cannot be read. */
  check_json: string
  /** The server that has the token for its download in memory. */
  hub_token_server: string | null
  created_at: number
}

/** Cached token count of a dataset with the tokenizer of a base model. */
interface DatasetTokens {
  dataset_id: string
  base_model_id: string
  found_json: string
}

/** A file that is no dataset. */
interface Files {
  id: string
  account_id: string
  filename: string
  purpose: 'batch' | 'evals' | 'user_data' | 'fine-tune-results' | 'batch_output'
  size_bytes: number
  sha256: string
  /** When it is deleted; null: only on request. */
  expires_at: number | null
  created_at: number
}

/** A file that is uploaded in parts. */
interface Uploads {
  id: string
  account_id: string
  filename: string
  purpose: 'fine-tune' | 'batch' | 'evals' | 'user_data'
  /** Size of the whole file, as announced. */
  size_bytes: number
  /** After how many seconds the file is to be deleted; null: only on request. */
  file_seconds: number | null
  status: 'pending' | 'completed' | 'cancelled' | 'expired'
  /** The file, or the dataset, that it became. */
  file_id: string | null
  expires_at: number
  created_at: number
}

/** Requests of a file that are answered in the background. */
interface Batches {
  id: string
  account_id: string
  /** The key that its answers are metered on. */
  key_id: string
  endpoint: '/v1/chat/completions' | '/v1/completions' | '/v1/embeddings'
  input_file_id: string
  status: BatchStatus
  /** The model of all requests; null if they differ, or are not read yet. */
  model: string | null
  metadata_json: Json<Metadata> | null
  errors_json: Json<BatchError[]> | null
  total: number
  completed: number
  failed: number
  prompt_tokens: number
  cached_tokens: number
  completion_tokens: number
  output_file_id: string | null
  error_file_id: string | null
  /** After how many seconds the result files are to be deleted; null: only on request. */
  output_seconds: number | null
  /** When each status began, in unix milliseconds. */
  times_json: Json<Partial<Record<Exclude<BatchStatus, 'validating'>, number>>>
  /** How it ends, once its results are being published. */
  ending: 'completed' | 'expired' | 'cancelled' | null
  expires_at: number
  created_at: number
}

type BatchStatus =
  | 'validating'
  | 'failed'
  | 'in_progress'
  | 'finalizing'
  | 'completed'
  | 'expired'
  | 'cancelling'
  | 'cancelled'

/** Graders with a name, whose runs are evaluations. */
interface Evals {
  id: string
  account_id: string
  name: string
  metadata_json: Json<Metadata>
  /** What its rows are: `data_source_config` as it was asked for. */
  source_config_json: Json<SourceConfig>
  graders_json: Json<Grader[]>
  /** Bytes of the row, for the storage quota. */
  size_bytes: Generated<number>
  updated_at: number
  created_at: number
}
interface Evaluations {
  id: string
  account_id: string
  /** The key that its answers are metered on. */
  key_id: string
  name: string
  description: string
  metadata_json: Json<Metadata>
  status: 'queued' | 'running' | 'completed' | 'failed' | 'cancelled'
  error_json: Json<ErrorText> | null
  /** As it was asked for; `model_id` is what the name stood for. Both are empty if the rows bring their answers. */
  model: string
  model_id: string
  baseline: string | null
  baseline_id: string | null
  /** A dataset, or a file with the purpose `evals`. */
  dataset_id: string
  graders_json: Json<Grader[]>
  template_json: Json<NonNullable<CreateEvaluation['template']>> | null
  sampling_json: Json<CreateEvaluation['sampling']>
  /** Null: the defaults. */
  grading_json: Generated<Json<GradingLimits> | null>
  /** The rows to draw from, and how many of them are evaluated: of the dataset, or those that a job held out of it. */
  total_rows: number
  rows: number
  held_out_by: Generated<string | null>
  /** How many of them the model was trained on; null: not known. */
  trained_rows: Generated<number | null>
  /** Answers that are scored. */
  done: number
  /** Size of the row and its answers, for the storage quota. */
  size_bytes: Generated<number>
  /** Set once the evaluation has ended. */
  result_json: Json<NonNullable<Evaluation['result']>> | null
  /** The eval of OpenAI's API that it is a run of, and the run's `data_source` as it was asked for. */
  eval_id: string | null
  data_source_json: Json<{ type: string; model?: string }> | null
  created_at: number
  started_at: number | null
  finished_at: number | null
}

interface EvaluationAnswers {
  evaluation_id: string
  row: number
  side: 'model' | 'baseline'
  item_json: Json<Record<string, unknown>>
  output: string | null
  tool_calls_json: Json<NonNullable<EvaluationAnswer['tool_calls']>> | null
  score: number
  passed: number
  /** 1: a grader failed, so that the answer has no score. */
  ungraded: Generated<number>
  graders_json: Json<EvaluationAnswer['graders']>
  error_json: Json<ErrorText> | null
  finish_reason: string | null
  latency_ms: number | null
  prompt_tokens: number
  cached_tokens: number
  completion_tokens: number
}

/** An answer that an account keeps. */
interface StoredCompletions {
  id: string
  account_id: string
  /** As it was asked for. */
  model: string
  metadata_json: Json<Metadata>
  /** The messages, and the parameters that made the answer. */
  request_json: Json<ChatRequest>
  response_json: Json<ChatResponse>
  /** Bytes of the row, for the storage quota. */
  size_bytes: Generated<number>
  expires_at: number
  created_at: number
}
/** A response that is kept for the next turn of its conversation. */
interface Responses {
  id: string
  account_id: string
  previous_response_id: string | null
  /** The items that it answers, without those of earlier turns. */
  input_json: Json<(InputItem & { id: string })[]>
  response_json: Json<Response>
  /** Bytes of the row, for the storage quota. */
  size_bytes: Generated<number>
  /** When its conversation last continued. */
  used_at: number
  created_at: number
}

interface UploadParts {
  id: string
  upload_id: string
  size_bytes: number
  created_at: number
}

/** Fields that users may change at any time. */
interface Labelled {
  name: string
  description: string
  metadata_json: Json<Metadata>
}

interface TuningJobs extends Labelled {
  id: string
  account_id: string
  model_id: string
  base_model_id: string
  /** Snapshot of the account's model that training starts from; null: from the base model. */
  parent_json: string | null
  /** Snapshot of method, epochs and datasets at creation. */
  recipe_json: string
  dataset_id: string
  status: 'queued' | 'running' | 'completed' | 'failed' | 'cancelled'
  progress: number
  current_epoch: number
  metrics_json: Json<JobMetrics>
  estimated_completion: number | null
  config_json: Json<JobConfig>
  resolved_config_json: Json<ResolvedConfig>
  /** Fixed at creation: an exact resume needs the same number. */
  threads: number
  error_json: Json<ErrorText> | null
  trained_tokens: number
  /** The API key that created it. */
  key_id: string
  /** Total time of its ended trainers, and when the running one started. */
  ran_ms: number
  running_since: number | null
  validation_dataset_id: string | null
  /** 1 if a user paused it. */
  paused: 0 | 1
  /** Trainer crashes since the last checkpoint. */
  crashes: number
  /** Bytes of its two newest checkpoints, as if both had the size of the last; they are there until it ends. */
  checkpoint_bytes: Generated<number>
  /** The evaluation that its result is evaluated like, and the evaluation of the result. */
  evaluation_id: string | null
  /** The W3C header of the request that created it; null without tracing. */
  traceparent: Generated<string | null>
  result_evaluation_id: string | null
  /** Suffix and integrations of a job created through OpenAI's API. */
  openai_json: string | null
  /** The file with the losses of its steps, once completed. */
  result_file_id: string | null
  /** For a running job: what takes processor time from it. */
  slowed_by: 'serving' | 'other_work' | null
  model: string | null
  created_at: number
  started_at: number | null
  finished_at: number | null
  /** Deleted jobs keep their row: models tell what they came from. */
  deleted_at: Generated<number | null>
}

export interface JobEvents {
  job_id: string
  seq: number
  type: 'status' | 'progress' | 'metrics' | 'checkpoint' | 'sample' | 'log' | 'warning' | 'error'
  message: string
  data_json: Json<Record<string, unknown>> | null
  created_at: number
}

/** Evaluation of a job on its held-out rows. An attempt that resumes at an earlier step overwrites later rows. */
interface JobEvaluations {
  job_id: string
  step: number
  data_json: Json<Omit<JobEvaluation, 'step' | 'created_at'>>
  created_at: number
}

/** The numbers of the rows that a job held out of its dataset, counted from 1, in order. */
interface JobHeldOut {
  job_id: string
  rows_json: Json<number[]>
}

/** Answers of a step of a job that learns from graders. The messages of their rows stay in the dataset. */
interface JobRollouts {
  job_id: string
  step: number
  split: 'training' | 'validation'
  figures_json: Json<NonNullable<RolloutStep['training']>>
  groups_json: Json<Omit<NonNullable<StepRollouts['training']>['groups'][number], 'line' | 'messages'>[]>
}

/** A link to the page of a model. */
interface Shares {
  id: string
  account_id: string
  /** The model may be deleted by now, and so may the evaluation. */
  model_id: string
  evaluation_id: string | null
  /** SHA-256 of the token, in hex. */
  hash: string
  requests_per_day: number
  max_tokens: number
  expires_at: number | null
  revoked_at: number | null
  created_at: number
}

/** Requests by a link per UTC day; `day` is its start. */
interface ShareDays {
  share_id: string
  day: number
  requests: number
}

interface Models extends Labelled {
  id: string
  account_id: string
  /** The hub's base model that it was trained from. */
  base_model_id: string
  kind: 'adapter' | 'model'
  /** Its name in OpenAI's API; see `ftName`. */
  ft_name: string | null
  /** The account's model that training started from; it may have been deleted. */
  parent_model_id: string | null
  /** The tuned model whose full weights an adapter needs, if not the base model's. */
  weights_model_id: string | null
  job_id: string | null
  method: 'lora' | 'qlora' | 'full'
  /** The training step of these weights, and their loss on the held-out rows. */
  step: number | null
  validation_loss: number | null
  /** SHA-256 of the GGUF file that the engine serves. */
  gguf_sha256: string
  /** Hash of its folder in Hugging Face's form, which vLLM serves (`hashTree`); null where none was recorded. */
  folder_sha256: string | null
  /** SHA-256 of its own projector's file; null: it reads pictures as what it was made from, if at all. */
  projector_sha256: string | null
  /** That of the tuned model `weights_model_id`. */
  weights_projector_sha256: string | null
  /** Hash of its draft file; null if it has none, or no longer: it goes with the dataset of its training. */
  drafts_sha256: string | null
  /** Result of the comparison of engine and trainer, once made. */
  comparison_json: Json<Comparison> | null
  /** What the rows of its training have in common; null where it is not known. */
  trained_with_json: Json<TrainedWith> | null
  size_bytes: number
  created_at: number
}

interface Deployments {
  id: string
  account_id: string
  name: string
  model: string
  status: 'starting' | 'ready' | 'failed' | 'stopped'
  error_json: Json<ErrorText> | null
  /** What it served before. */
  former_model: string | null
  /** The model that is to serve next, with its gate and its evaluation. */
  pending_json: Json<NonNullable<Deployment['pending']>> | null
  created_at: number
  updated_at: number
}

interface DeploymentHistory {
  id: string
  account_id: string
  deployment_id: string
  action: 'created' | 'switched' | 'gate_passed' | 'gate_refused' | 'rolled_back'
  model: string
  former_model: string | null
  evaluation_id: string | null
  reason: string | null
  created_at: number
}

interface DeploymentScaling {
  deployment_id: string
  /** The contract's ScalingPolicy. */
  policy_json: string
  instance_type: string
  updated_at: number
}

interface ScalingDecisions {
  id: string
  deployment_id: string
  /** The server process that decided. */
  server: string
  from_replicas: number
  to_replicas: number
  in_flight: number
  waiting: number
  reason: string
  created_at: number
}

interface QueueEntries {
  id: Generated<number>
  kind: string
  /** The id of the object to work on; one live entry per kind and ref. */
  ref: string
  /** Accounts take turns; '' for work of the service. */
  account_id: Generated<string>
  status: 'waiting' | 'leased' | 'done' | 'dead'
  run_at: number
  /** The order within an account. */
  place: Generated<number>
  attempt: number
  /** The worker with the lease, and when the lease expires. */
  worker: string | null
  lease_until: number | null
  /** When it was last claimed: the account's turn. */
  claimed_at: Generated<number | null>
  /** Until then it goes before the entries of all others, should it come back. */
  turn_until: Generated<number>
  /** Until then a running entry of another account gives way to it: no other need do so. */
  promised_until: Generated<number>
  created_at: number
}

interface Events {
  id: string
  account_id: string
  type: string
  data_json: Json<Record<string, unknown>>
  created_at: number
}

interface Webhooks {
  id: string
  account_id: string
  url: string
  format: 'tunery' | 'openai'
  /** Types of this service's events, whatever the format. */
  events_json: Json<string[]>
  /** The valid secrets, oldest first, each encrypted and with its expiry; null for the newest. */
  secrets_json: Json<{ sealed: string; expires_at: number | null }[]>
  disabled_at: number | null
  disabled_reason: 'requested' | 'gone' | 'failing' | null
  /** Consecutive failed attempts, when they began, and until when none is made. */
  failures: number
  failing_since: number | null
  slowed_until: number | null
  created_at: number
  updated_at: number
}

/** Delivery of an event to one webhook. */
interface WebhookDeliveries {
  id: string
  account_id: string
  webhook_id: string
  event_id: string
  type: string
  status: 'pending' | 'delivered' | 'failed' | 'blocked_address'
  attempts: number
  /** When the next attempt is due; null when the delivery has ended. */
  next_attempt_at: number | null
  /** When the lease of the current attempt expires; also identifies the claim. */
  lease_until: number | null
  created_at: number
}

/** One attempt at a delivery. */
interface WebhookAttempts {
  delivery_id: string
  number: number
  started_at: number
  duration_ms: number
  response_status: number | null
  /** The first kB of the answer. */
  response_body: string | null
  error_json: Json<NonNullable<DeliveryAttempt['error']>> | null
}

/** What was created under an Idempotency-Key, and the answer, encrypted as it may hold a secret. */
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

/** The last download of each base model. */
interface ModelDownloads {
  model_id: string
  status: 'queued' | 'downloading' | 'converting' | 'completed' | 'failed' | 'cancelled'
  /** The commit that is downloaded, so that a resumed download fetches the same one. */
  revision: string | null
  bytes: number
  total_bytes: number | null
  /** Consecutive attempts without progress. */
  failures: number
  error_json: Json<ErrorText> | null
  /** The account that requested it first. */
  account_id: string
  /** 1 if another account requested it too. */
  shared: 0 | 1
  created_at: number
  updated_at: number
}

/** Queued jobs without a queue entry yet: their base model is still being downloaded. */
interface JobsAwaitingWeights {
  job_id: string
  model_id: string
}

/** A session of a client of Tinker's API. */
interface TinkerSessions {
  id: string
  account_id: string
  key_id: string
  display_name: string | null
  user_metadata_json: Json<Record<string, string>>
  tags_json: Json<string[]>
  created_at: number
  /** When its client was last heard of, about. */
  last_seen_at: number
  ended_at: number | null
  /** `silent`: its client was not heard of any more. */
  end_reason: 'success' | 'errored' | 'interrupted' | 'silent' | null
  end_detail: string | null
  /** 0 once its folder was removed. */
  has_files: 0 | 1
}

/** A training run of Tinker's API: an adapter that its client trains step by step. */
interface TinkerRuns {
  id: string
  session_id: string
  account_id: string
  key_id: string
  base_model_id: string
  /** The base as the client names it. */
  model_name: string
  lora_json: Json<{ rank: number; seed: number; train_mlp: boolean; train_attn: boolean }>
  user_metadata_json: Json<Record<string, string>>
  /** `live`: in a trainer; `saved`: on disk; `lost`: its trainer ended with what was not saved; `ended`. */
  state: 'live' | 'saved' | 'lost' | 'ended'
  /** SHA-256 of the manifest of its saved state. */
  state_sha256: string | null
  /** Size of its saved state. */
  size_bytes: Generated<number>
  problem: string | null
  /** The number of its next request. */
  next_seq: number
  /** Optimizer steps. */
  step: number
  trained_tokens: number
  /** How often its tokens were written to the usage. */
  metered: number
  created_at: number
  last_request_at: number
}

/** What a client of Tinker's API samples from: a base, a checkpoint, or weights of a run without a name. */
interface TinkerSamplers {
  id: string
  session_id: string
  account_id: string
  base_model_id: string
  model_name: string
  model_path: string | null
  run_id: string | null
  /** The files of weights without a name, in the data folder. */
  folder: string | null
  /** Size of these files. */
  size_bytes: Generated<number>
  /** Clients that joined it. */
  clients: number
  created_at: number
}

interface TinkerCheckpoints {
  id: string
  run_id: string
  account_id: string
  kind: 'training' | 'sampler' | 'external'
  name: string
  /** The tuned model that weights for sampling are. */
  model_id: string | null
  sha256: string
  /** Size of its own files; those of a model are the model's. */
  size_bytes: number
  public: 0 | 1
  user_metadata_json: Json<Record<string, string>> | null
  expires_at: number | null
  created_at: number
}

interface Exports {
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
  files_json: Json<ExportFile[]>
  /** Result of the comparison with the trainer's answers, once made. */
  check_json: Json<ExportCheck> | null
  push_json: Json<NonNullable<Export['push']>> | null
  error_json: Json<ErrorText> | null
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
interface ExportRepositories {
  repository: string
  account_id: string
}

interface ExportEvents {
  export_id: string
  seq: number
  type: 'status' | 'progress' | 'log' | 'warning' | 'error'
  message: string
  data_json: Json<Record<string, unknown>> | null
  created_at: number
}

/** A server process of the installation. `seen_at`: its last heartbeat. */
interface Servers {
  id: string
  host: string
  pid: number
  version: string
  secret_key_id: string
  storage_url: string | null
  started_at: number
  seen_at: number
}

/** The turn of a periodic task: `server` runs it, and no other before `until`. */
interface PeriodicTasks {
  name: string
  server: string
  until: number
}

/** A run of a training on other machines. `received` and `recorded` are sequence numbers of its trainer's lines. */
interface TrainingRuns {
  job_id: string
  /** The attempt that submitted it. */
  attempt: number
  submission_id: string
  token_encrypted: string
  received: number
  recorded: number
  created_at: number
  /** When the cluster accepted it. */
  submitted_at: number | null
  /** Whether it is to stop at a checkpoint, as its account's turn is over. */
  turn_over: Generated<number>
  /** When its machine last reported. */
  seen_at: number | null
  /** Since when nothing is accepted from it any more. */
  ended_at: number | null
  /** When the cluster no longer ran it. */
  cleared_at: number | null
}

interface TrainingRunLines {
  job_id: string
  attempt: number
  seq: number
  type: string
  line_json: string
}

interface Installation {
  /** Names what the installation keeps outside of its database. One row. */
  id: string
}

export interface Schema {
  installation: Installation
  accounts: Accounts
  users: Users
  api_keys: ApiKeys
  passwords: Passwords
  sessions: Sessions
  sign_in_tokens: SignInTokens
  passkeys: Passkeys
  oidc_identities: OidcIdentities
  audit: Audit
  datasets: Datasets
  dataset_tokens: DatasetTokens
  files: Files
  uploads: Uploads
  upload_parts: UploadParts
  batches: Batches
  responses: Responses
  stored_completions: StoredCompletions
  evals: Evals
  evaluations: Evaluations
  evaluation_answers: EvaluationAnswers
  tuning_jobs: TuningJobs
  job_events: JobEvents
  jobs_awaiting_weights: JobsAwaitingWeights
  model_downloads: ModelDownloads
  job_evaluations: JobEvaluations
  job_held_out: JobHeldOut
  job_rollouts: JobRollouts
  training_runs: TrainingRuns
  training_run_lines: TrainingRunLines
  shares: Shares
  share_days: ShareDays
  models: Models
  deployments: Deployments
  deployment_history: DeploymentHistory
  deployment_scaling: DeploymentScaling
  scaling_decisions: ScalingDecisions
  tinker_sessions: TinkerSessions
  tinker_runs: TinkerRuns
  tinker_samplers: TinkerSamplers
  tinker_checkpoints: TinkerCheckpoints
  exports: Exports
  export_events: ExportEvents
  export_repositories: ExportRepositories
  queue_entries: QueueEntries
  events: Events
  usage: Usage
  usage_days: UsageDays
  usage_figures: UsageFigures
  usage_thresholds: UsageThresholds
  usage_notices: UsageNotices
  day_counts: DayCounts
  idempotency_keys: IdempotencyKeys
  webhooks: Webhooks
  webhook_deliveries: WebhookDeliveries
  webhook_attempts: WebhookAttempts
  servers: Servers
  periodic_tasks: PeriodicTasks
  migrations: Migrations
}

export type Row<T extends keyof Schema> = Selectable<Schema[T]>
export type NewRow<T extends keyof Schema> = Insertable<Schema[T]>
