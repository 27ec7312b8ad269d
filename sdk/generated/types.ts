// Written by `npm run docs` from the contract. Do not edit.

export type Time = string
export type KeyScope =
  | 'hub:read' | 'datasets:read' | 'datasets:write' | 'tuning:read' | 'tuning:write' | 'deployments:read'
  | 'deployments:write' | 'exports:read' | 'exports:write' | 'inference' | 'profile:read' | 'usage:read' | 'usage:write'
  | 'webhooks:read' | 'webhooks:write' | 'keys:read' | 'keys:write' | 'members:read' | 'members:write' | 'audit:read'
  | 'operator'
export type DisplayName = string
export type Email = string | null
export type Role = 'owner' | 'admin' | 'member' | 'viewer'
export type ShortName = string
export type ModelCategory = 'language' | 'code' | 'multimodal' | 'embedding'
export type Method = 'lora' | 'qlora' | 'full'
export type Description = string
export type DatasetFormat = 'jsonl' | 'csv' | 'parquet' | 'huggingface'
export type GraderInput =
  | StringCheckGrader | TextSimilarityGraderInput | LabelModelGrader | ScoreModelGraderInput | JsonSchemaGraderInput
  | JsonEqualGraderInput | ContainsGraderInput | RegexGraderInput | ToolCallGrader | PythonGraderInput
  | EndpointGraderInput | MultiGraderInput
export type Seed = number
export type SimpleGraderInput =
  | StringCheckGrader | TextSimilarityGraderInput | LabelModelGrader | ScoreModelGraderInput | JsonSchemaGraderInput
  | JsonEqualGraderInput | ContainsGraderInput | RegexGraderInput | ToolCallGrader | PythonGraderInput
  | EndpointGraderInput
export type GradersInput = GraderInput[]
export type EnvironmentsInput = EnvironmentInput[]
export type Grader =
  | StringCheckGrader | TextSimilarityGrader | LabelModelGrader | ScoreModelGrader | JsonSchemaGrader | JsonEqualGrader
  | ContainsGrader | RegexGrader | ToolCallGrader | PythonGrader | EndpointGrader | MultiGrader
export type SimpleGrader =
  | StringCheckGrader | TextSimilarityGrader | LabelModelGrader | ScoreModelGrader | JsonSchemaGrader | JsonEqualGrader
  | ContainsGrader | RegexGrader | ToolCallGrader | PythonGrader | EndpointGrader
export type Graders = Grader[]
export type Environments = Environment[]
export type DeploymentName = string
export type Duration = string
export type EvaluationTemplate = TemplateMessage[] | { item_reference: ItemReference }
export type ItemReference = string
export type ReasoningEffort = 'none' | 'minimal' | 'low' | 'medium' | 'high' | 'xhigh' | 'max'
export type ResponseFormat = TextResponseFormat | JsonResponseFormat | JsonSchemaResponseFormat
export type EventName =
  | 'training.started' | 'training.completed' | 'training.failed' | 'training.cancelled' | 'model.deployed'
  | 'usage.threshold' | 'batch.completed' | 'batch.failed' | 'batch.expired' | 'batch.cancelled'
  | 'fine_tuning.job.succeeded' | 'fine_tuning.job.failed' | 'fine_tuning.job.cancelled'
/** How events are written. `openai`: as OpenAI's webhooks are, with its names of events. */
export type WebhookFormat = 'tunery' | 'openai'
export type WebhooksRotateSecretBody = {
  /** Printable ASCII. After the prefix `whsec_` it must be base64. Generated if left out, and then shown only in this response. */
  secret?: string | undefined
  /** 0 ends every secret before the new one at once. */ overlap_hours?: number | undefined
} | null
export type ChatMessage =
  | { role: 'system' | 'developer' | 'user'; content: string | ContentPart[]; [k: string]: unknown }
  | {
      role: 'assistant'
      content?: (string | ContentPart[]) | null | undefined
      tool_calls?: ToolCall[] | null | undefined
      reasoning_content?: string | null | undefined
      /** As `reasoning_content`. */ reasoning?: string | null | undefined
      /** As `reasoning_content`. */ thinking?: string | null | undefined
      [k: string]: unknown
    }
  | { role: 'tool'; content: string | ContentPart[]; tool_call_id: string; [k: string]: unknown }
export type ContentPart =
  | { type: 'text'; text: string; [k: string]: unknown }
  | { type: 'refusal'; refusal: string; [k: string]: unknown }
  | { type: 'image_url'; image_url: { url: string; [k: string]: unknown }; [k: string]: unknown }
export type Messages = ChatMessage[]
export type ToolChoice =
  | ('none' | 'auto' | 'required')
  | { type: 'function'; function: { name: string; [k: string]: unknown }; [k: string]: unknown }
  | {
      type: 'allowed_tools'
      allowed_tools: {
        mode: 'auto' | 'required'
        /** Those of the tools that may be called. */
        tools: { type: 'function'; function: { name: string; [k: string]: unknown }; [k: string]: unknown }[]
        [k: string]: unknown
      }
      [k: string]: unknown
    }
export type InputItem =
  | {
      type?: 'message' | undefined
      role: 'user' | 'assistant' | 'system' | 'developer'
      content:
        | string
        | (
            | { type: 'input_text'; text: string; [k: string]: unknown }
            | { type: 'output_text'; text: string; [k: string]: unknown }
            | { type: 'refusal'; refusal: string; [k: string]: unknown }
            | { type: 'input_image'; image_url: string; [k: string]: unknown }
          )[]
      [k: string]: unknown
    }
  | {
      type: 'function_call'
      call_id: string
      name: string
      namespace?: string | null | undefined
      arguments: string
      [k: string]: unknown
    }
  | {
      type: 'function_call_output'
      call_id: string
      output:
        | string
        | (
            | { type: 'input_text'; text: string; [k: string]: unknown }
            | { type: 'output_text'; text: string; [k: string]: unknown }
            | { type: 'refusal'; refusal: string; [k: string]: unknown }
            | { type: 'input_image'; image_url: string; [k: string]: unknown }
          )[]
      [k: string]: unknown
    }
  | {
      type: 'custom_tool_call'
      call_id: string
      name: string
      namespace?: string | null | undefined
      input: string
      [k: string]: unknown
    }
  | {
      type: 'custom_tool_call_output'
      call_id: string
      output:
        | string
        | (
            | { type: 'input_text'; text: string; [k: string]: unknown }
            | { type: 'output_text'; text: string; [k: string]: unknown }
            | { type: 'refusal'; refusal: string; [k: string]: unknown }
            | { type: 'input_image'; image_url: string; [k: string]: unknown }
          )[]
      [k: string]: unknown
    }
  | { type: 'reasoning'; [k: string]: unknown }
export type TextFormat =
  | { type: 'text'; [k: string]: unknown }
  | { type: 'json_object'; [k: string]: unknown }
  | {
      type: 'json_schema'
      name: string
      description?: string | null | undefined
      schema: { [k: string]: unknown }
      strict?: boolean | null | undefined
      [k: string]: unknown
    }
export type ResponsesOutputItem =
  | {
      type: 'message'
      id: string
      status: 'in_progress' | 'completed' | 'incomplete'
      role: 'assistant'
      content: {
        type: 'output_text'
        text: string
        annotations: { [k: string]: unknown }[]
        logprobs: { [k: string]: unknown }[]
      }[]
    }
  | {
      type: 'function_call'
      id: string
      status: 'in_progress' | 'completed' | 'incomplete'
      call_id: string
      name: string
      namespace?: string
      arguments: string
    }
  | {
      type: 'custom_tool_call'
      id: string
      status: 'in_progress' | 'completed' | 'incomplete'
      call_id: string
      name: string
      namespace?: string
      input: string
    }
  | {
      type: 'reasoning'
      id: string
      status: 'in_progress' | 'completed' | 'incomplete'
      summary: { [k: string]: unknown }[]
      content: { type: 'reasoning_text'; text: string }[]
    }
export type FilePurpose = 'fine-tune' | 'batch' | 'evals' | 'user_data' | 'fine-tune-results' | 'batch_output'
export type DataSource =
  | { type: 'jsonl'; source: FileContent | FileId; [k: string]: unknown }
  | {
      type: 'completions'
      source:
        | FileContent | FileId
        | {
            type: 'stored_completions'
            /** Unix seconds. */ created_after?: number | null | undefined
            /** Unix seconds. */ created_before?: number | null | undefined
            limit?: number | null | undefined
            metadata?: Metadata | null | undefined
            model?: string | null | undefined
            [k: string]: unknown
          }
      model?: string | null | undefined
      input_messages?:
        | (
            | { type: 'template'; template: TemplateMessage[]; [k: string]: unknown }
            | { type: 'item_reference'; item_reference: ItemReference; [k: string]: unknown }
          )
        | null | undefined
      sampling_params?: {
        /** Default 0. */ temperature?: number | null | undefined
        /** Default 512. */ max_completion_tokens?: number | null | undefined
        top_p?: number | null | undefined
        seed?: Seed | null | undefined
        reasoning_effort?: ReasoningEffort | null | undefined
        response_format?: ResponseFormat | null | undefined
        tools?: Tool[] | null | undefined
        [k: string]: unknown
      } | null | undefined
      [k: string]: unknown
    }
  | {
      type: 'responses'
      source: FileContent | FileId
      model?: string | null | undefined
      input_messages?:
        | (
            | { type: 'template'; template: TemplateMessage[]; [k: string]: unknown }
            | { type: 'item_reference'; item_reference: ItemReference; [k: string]: unknown }
          )
        | null | undefined
      sampling_params?: {
        /** Default 0. */ temperature?: number | null | undefined
        /** Default 512. */ max_completion_tokens?: number | null | undefined
        top_p?: number | null | undefined
        seed?: Seed | null | undefined
        reasoning_effort?: ReasoningEffort | null | undefined
        text?: { format?: TextFormat | null; [k: string]: unknown } | null | undefined
        tools?: FunctionTool[] | null | undefined
        [k: string]: unknown
      } | null | undefined
      [k: string]: unknown
    }

export interface Profile {
  id: string
  name: string
  email: string | null
  role: 'owner' | 'admin' | 'member' | 'viewer'
  account: { id: string; name: string }
  tier: Tier
  limits: {
    /** Null is unlimited. */ requests_per_minute: number | null
    requests_per_day: number | null
    max_concurrent: number | null
  }
  /** What the account has used of its limits until now. */
  usage: { minute: { used: number; resets_at: Time }; day: { used: number; resets_at: Time }; concurrent: number }
  /** The key that asks; null in a session of the dashboard. */
  key: { id: string; name: string; prefix: string; scopes: KeyScope[]; created_at: Time } | null
  /** The session that asks; null for a key. */ session: { id: string; created_at: Time; expires_at: Time } | null
}
export interface Tier {
  id: string
  name: string
  /** Null is unlimited. */ requests_per_minute: number | null
  requests_per_day: number | null
  max_concurrent: number | null
  /** Sum of `max_replicas` over the deployments of an account that scale. Null is unlimited. */
  max_replicas: number | null
  /** Most MB that an account may store: datasets, files, uploads, models and exports. Null is unlimited. */
  max_storage_mb: number | null
  /** Streams of events of jobs and exports that an account may have open at once at a server. Null: a quarter of the connections of that server. */
  max_event_streams: number | null
}
export interface UserPresenceQuery {
  wait_seconds?: number | undefined
}
export interface UserPresenceResponse {
  present: true
}
export interface UserUpdateBody {
  name?: DisplayName | undefined
  email?: Email | undefined
}
export interface Member {
  id: string
  name: string
  email: string | null
  /** Bounds what keys of this member may do. */ role: Role
  created_at: Time
}
export interface UserSetPasswordBody {
  /** 10 to 200 characters; the commonest passwords and the email are refused. */ password: string
  /** The password until now. Not needed within 10 minutes after a sign-in with a link. */
  current_password?: string | undefined
  /** Needed if you have none yet: you sign in with it. */ email?: string | undefined
}
export interface UserSetPasswordResponse {
  has_password: true
}
export interface UserPasskeysOptionsResponse {
  challenge: string
  [k: string]: unknown
}
export interface UserPasskeysAddBody {
  name: ShortName
  response: { id: string; [k: string]: unknown }
}
export interface Passkey {
  id: string
  name: string
  created_at: Time
  last_used_at: Time | null
}
export interface UserPasskeysListResponse {
  items: Passkey[]
}
export interface Deleted {
  id: string
  deleted: true
}
export interface Identities {
  items: Identity[]
}
export interface Identity {
  id: string
  /** The address of the OpenID provider. */ issuer: string
  /** What the provider verified as the member’s email when it was connected. */ email: string | null
  created_at: Time
}
export interface SignInWaysResponse {
  password: boolean
  passkey: boolean
  /** The name of the provider; null if there is none. */ oidc: string | null
  /** Nobody has signed in yet: the link that the first start printed is the way. */ first: boolean
}
export interface SignInWithPasswordBody {
  email: string
  password: string
}
/** The session’s cookie is in the header `set-cookie`. */
export interface SignInWithPasswordResponse {
  session: Session
}
export interface Session {
  id: string
  /** Whether it is the one that asks. */ current: boolean
  begun_by: 'link' | 'password' | 'passkey' | 'oidc' | 'invitation'
  /** The browser, as it named itself when the session began. */ user_agent: string
  /** The address from which the session began. */ address: string
  created_at: Time
  /** To the minute. */ last_used_at: Time
  /** When it ends unless it is used before; each use moves it, up to 90 days in all. */ expires_at: Time
}
export interface SignInWithLinkBody {
  /** The part of the link behind `#`. */ token: string
}
export interface SignInWithPasskeyBody {
  response: { id: string; [k: string]: unknown }
}
export interface SignInAccountsResponse {
  /** What the provider has verified. */ email: string
  items: {
    /** The member as whom they would sign in; null: as a new one. */ user_id: string | null
    name: string
    /** Bounds what keys of this member may do. */ role: Role
    account: { name: string }
  }[]
}
export interface SignInChooseAccountBody {
  user_id: string | null
}
export interface SignInChooseAccountResponse {
  session: Session
  /** The page to go to. */ next: string
}
export interface SignInLookAtInvitationBody {
  /** The part of the link behind `#`. */ token: string
}
export interface SignInLookAtInvitationResponse {
  account: { name: string }
  invited_by: string | null
  name: string
  email: string | null
  /** Bounds what keys of this member may do. */ role: Role
}
export interface SignInAcceptInvitationBody {
  /** The part of the link behind `#`. */ token: string
  /** 10 to 200 characters; the commonest passwords and the email are refused. */ password?: string | undefined
}
export interface SessionState {
  session: Session
  profile: Profile
  /** What the session may do: what the role of its member allows now. */ scopes: KeyScope[]
  /** Requests that change something carry it in `x-csrf-token`. */ csrf_token: string
  has_password: boolean
  has_passkey: boolean
}
export interface ListQueryInput {
  /** 1 to 100. Default 20. A page of large items has fewer: about 8 MB at most. */ limit?: number | undefined
  /** The id after which the page begins. */ after?: string | undefined
}
export interface SessionsEndOthersResponse {
  ended: number
}
export interface InvitationsCreateBody {
  name: DisplayName
  email?: Email | undefined
  /** Bounds what keys of this member may do. */ role?: Role | undefined
}
export interface InvitationsCreateResponse {
  id: string
  member: Member
  created_at: Time
  expires_at: Time
  /** Send it to the new member yourself. */ link: string
}
export interface Invitation {
  id: string
  member: Member
  created_at: Time
  expires_at: Time
}
export interface AuditEntry {
  id: string
  created_at: Time
  /** What was done, such as `key.created`. */ action: string
  /** The id of what it was done to. */ target: string
  details: { [k: string]: unknown }
  /** Who did it. What the operator did shows neither member nor key: these belong to another account. */ by: {
    /** An API key of the account, a session of one of its members, the operator of the service, its command line, or the service itself. */
    kind: 'key' | 'session' | 'operator' | 'command_line' | 'service'
    user_id: string | null
    /** The key, or the session. */ key_id: string | null
  }
}
export interface KeysCreateBody {
  name: DisplayName
  /** A preset, limited to your own scopes, or a list of scopes that you have. */
  scopes?: ('full' | 'inference' | 'read_only') | KeyScope[] | undefined
  /** From when on the key is refused; null: never. */ expires_at?: Time | null | undefined
  /** The member whose key it is to be; yourself if left out. Of others only with `members:write`. */
  user_id?: string | undefined
}
export interface NewApiKey {
  id: string
  name: string
  /** The first characters of the key; the rest is stored only as a hash. */ prefix: string
  /** What the key carries. The role of its member bounds them at every request. */ scopes: KeyScope[]
  /** The member whose key it is. */ user_id: string
  status: 'active' | 'expired'
  created_at: Time
  expires_at: Time | null
  /** To the minute. */ last_used_at: Time | null
  /** The key itself. It is shown this once and cannot be read again. */ key: string
}
export interface ApiKey {
  id: string
  name: string
  /** The first characters of the key; the rest is stored only as a hash. */ prefix: string
  /** What the key carries. The role of its member bounds them at every request. */ scopes: KeyScope[]
  /** The member whose key it is. */ user_id: string
  status: 'active' | 'expired'
  created_at: Time
  expires_at: Time | null
  /** To the minute. */ last_used_at: Time | null
}
export interface KeysRenameBody {
  name: DisplayName
}
export interface MembersAddBody {
  name: DisplayName
  email?: Email | undefined
  role?: Role | undefined
}
export interface MembersUpdateBody {
  name?: DisplayName | undefined
  email?: Email | undefined
  role?: Role | undefined
}
export interface Machine {
  /** Version of this service. */ version: string
  node: string
  started_at: Time
  uptime_seconds: number
  /** That this service may use. */ cores: number
  /** Average load of the last 1, 5 and 15 minutes. */ load: number[]
  memory: {
    /** Memory of the machine, or of the container if that has less. */ total_bytes: number
    /** Bytes. */ available_bytes: number
    /** Resident memory of the server alone, without engine and trainers. */ service_bytes: number
  }
  disk: {
    /** Size of the file system with the data folder. */ total_bytes: number
    /** That this service can still write. */ free_bytes: number
    /** TUNERY_MIN_FREE_DISK_MB: uploads, jobs and exports wait or are refused below it. */ kept_free_bytes: number
    /** What takes space, most first. Counted in the background, at most once a minute. Null: not yet. */
    kinds:
      | {
          kind: string
          /** Bytes. */ bytes: number
        }[]
      | null
    counted_at: Time | null
  }
  gpus: {
    name: string
    memory_bytes: number | null
    used_bytes: number | null
    /** Null, as each figure, where the driver does not know it. */ busy_percent: number | null
  }[]
  engine: {
    /** `stopped`: the next request starts it. */ status: 'running' | 'stopped' | 'failing'
    problem: string | null
    pid: number | null
    /** Resident memory, with the weights that it has read. */ memory_bytes: number | null
    /** The part of it for the contexts of running and cached conversations. */ context_bytes: number | null
    models: {
      id: string
      /** That its account gave a tuned model. */ name: string | null
      /** The base of an adapter; null for a base. */ base: string | null
      /** Size of its weights, in the form that answers. */ bytes: number | null
      /** What computes its answers: the engine itself, or a vLLM behind it. */ server: 'engine' | 'vllm'
      /** Why vLLM does not, where it was to. */ server_problem: string | null
      /** The job whose training has its memory, so that it sleeps. Null: it answers. */ asleep_for: string | null
    }[]
    /** What computes the answers of text models, by TUNERY_ENGINE. */ chosen: 'engine' | 'vllm'
    chosen_why: string
    /** Answers being computed. */ running: number
    /** Requests that wait for a slot. */ waiting: number
    /** Generated tokens since the last look. Null at the first look, or if that was more than a minute ago. */
    tokens_per_second: number | null
  }
  /** Running trainers. */ trainings: number
  /** What jobs train on: TUNERY_TRAINING_DEVICES. None where they train in a Ray cluster. */ training_devices: {
    /** `GPU 0`, or `cpu` and `cpu0` for places on the cores. */ name: string
    /** That a training may take. Null, as below, where it is not known. */ memory_bytes: number | null
    free_bytes: number | null
    /** The job that has it. Null: none. */ job_id: string | null
  }[]
  queues: {
    kind: string
    waiting: number
    running: number
    /** Since when the oldest waiting entry waits. */ oldest_at: Time | null
  }[]
  /** Servers of models: this machine’s engine, and the upstreams. */ replicas: {
    name: string
    /** The base that it serves. Null: this machine’s engine, for all others. */ model: string | null
    up: boolean
    in_flight: number
    max_concurrent: number
  }[]
  /** Requests that wait for a replica with free capacity, by base. */ waiting: { model: string; requests: number }[]
  setup: TrainingSetup
}
export interface TrainingSetup {
  /** Whether all that training needs is installed. Until then jobs and exports wait, and chat works. */ ready: boolean
  /** In their order. Empty if everything was there when the service started. */ steps: SetupStep[]
}
export interface SetupStep {
  name: string
  title: string
  status: 'waiting' | 'running' | 'done' | 'failed'
  /** How long it has run; null if it has not begun. */ seconds: number | null
  /** The last line of its output, or why it failed and what to do. Keys with the scope operator also see the output of a failed command. */
  message: string | null
}
export interface OperatorUsageQuery {
  /** A UTC day, `YYYY-MM-DD`; by default today. */ day?: string | undefined
}
export interface OperatorUsageResponse {
  day: string
  currency: string
  /** At most 1,000, without accounts that used nothing. */ items: AccountUsage[]
}
export interface AccountUsage {
  account_id: string
  name: string
  /** Requests of inference and ended jobs. */ requests: number
  prompt_tokens: number
  completion_tokens: number
  trained_tokens: number
  cost: number
}
export interface OperatorAccountsCreateBody {
  name: DisplayName
  /** The default tier if left out. */ tier?: string | undefined
  owner: { name: DisplayName; email?: Email }
}
export interface OperatorAccountsCreateResponse {
  account: Account
  owner: Member
  key: string
}
export interface Account {
  id: string
  name: string
  /** The id of one of `GET /hub/tiers`. */ tier: string
  status: 'active' | 'suspended'
  members: number
  created_at: Time
}
export interface OperatorAccountsUpdateBody {
  name?: DisplayName | undefined
  tier?: string | undefined
  status?: 'active' | 'suspended' | undefined
}
export interface UsageQueryInput {
  /** First UTC day, `YYYY-MM-DD`; by default 29 days before the last. */ from?: string | undefined
  /** Last UTC day; by default today. */ to?: string | undefined
  /** One or more of `day`, `model`, `key`, `kind`, with commas between. */ group_by?: string | undefined
}
export interface UsageReport {
  from: string
  to: string
  currency: string
  items: {
    day?: string
    /** The requested name: of a deployment, of a base, or the id of a tuned model. */ model?: string
    /** The model that the name resolved to. */ model_id?: string
    key_id?: string
    kind?: 'chat' | 'completion' | 'embedding' | 'training'
    /** Requests of inference and ended jobs. */ requests: number
    prompt_tokens: number
    completion_tokens: number
    /** Those of the prompt’s that an earlier request had computed. */ cached_tokens: number
    trained_tokens: number
    seconds: number
    /** By the prices when it was used, in `currency`. */ cost: number
  }[]
  total: {
    /** Requests of inference and ended jobs. */ requests: number
    prompt_tokens: number
    completion_tokens: number
    /** Those of the prompt’s that an earlier request had computed. */ cached_tokens: number
    trained_tokens: number
    seconds: number
    /** By the prices when it was used, in `currency`. */ cost: number
  }
}
export interface StorageReport {
  /** By the tier of the account (`max_storage_mb`). Null is unlimited. */ max_bytes: number | null
  used_bytes: number
  items: {
    /** `datasets`: as they were uploaded, or their rows as the service reads them if these are larger. `uploads`: those in parts that are pending, with the size that they announced. `checkpoints`: of jobs that have not ended, paused ones too. `evaluations`: with their answers, and evals. `completions`: stored ones. */
    kind:
      | 'datasets' | 'files' | 'uploads' | 'models' | 'checkpoints' | 'exports' | 'evaluations' | 'responses'
      | 'completions'
    count: number
    bytes: number
  }[]
}
export interface TimelineQuery {
  /** A name as requests give it: a deployment, a base or a tuned model. */ model: string
  /** Begin of the first bucket; rounded down to a whole step. By default 24 hours ago. */ from?: Time | undefined
  /** By default now. */ to?: Time | undefined
  /** Length of a bucket, in UTC. By default a minute up to 3 hours, an hour up to 7 days, else a day. Minutes go back 7 days. */
  step?: 'minute' | 'hour' | 'day' | undefined
}
/** Counted by the time at which requests came, for the last 90 days, by minute for the last 7. What was refused before its model was read (a wrong key, the rate limit of the account) is not counted, nor are single requests that fail within a batch or an evaluation, which count when they are answered. Percentiles are exact to 2.5 %. */
export interface Timeline {
  model: string
  from: Time
  to: Time
  step: 'minute' | 'hour' | 'day'
  /** All of the period, oldest first, also those without a request. */ buckets: {
    /** Its begin. */ at: Time
    /** Answered, broken, left, failed, refused and invalid ones. */ requests: number
    errors: {
      /** The client left before the end of the answer. */ client_left: number
      /** The answer broke off after it had begun. */ broken: number
      /** The model or its server failed before the answer began (5xx). */ failed: number
      /** The queue was full, or the service was stopping (429, 503). */ refused: number
      /** The request was not valid (4xx). */ invalid: number
    }
    prompt_tokens: number
    completion_tokens: number
    /** From the request to the end of the answer; of complete answers. Null: none. */
    latency_ms: { p50: number; p95: number } | null
    /** From the request to the first token; of streamed answers. Null: none. */
    first_token_ms: { p50: number; p95: number } | null
  }[]
  total: {
    /** Answered, broken, left, failed, refused and invalid ones. */ requests: number
    errors: {
      /** The client left before the end of the answer. */ client_left: number
      /** The answer broke off after it had begun. */ broken: number
      /** The model or its server failed before the answer began (5xx). */ failed: number
      /** The queue was full, or the service was stopping (429, 503). */ refused: number
      /** The request was not valid (4xx). */ invalid: number
    }
    prompt_tokens: number
    completion_tokens: number
    /** From the request to the end of the answer; of complete answers. Null: none. */
    latency_ms: { p50: number; p95: number } | null
    /** From the request to the first token; of streamed answers. Null: none. */
    first_token_ms: { p50: number; p95: number } | null
  }
}
export interface UsageThresholdsGetResponse {
  requests_per_day: number | null
  tokens_per_month: number | null
  cost_per_month: number | null
  percents: number[]
}
export interface ThresholdsInput {
  /** Null: the limit of the account’s tier, where it has one. */ requests_per_day?: number | null | undefined
  /** Tokens in, out and trained, of the UTC month. Null: no events. */ tokens_per_month?: number | null | undefined
  cost_per_month?: number | null | undefined
  /** At which percentages of each threshold `usage.threshold` is sent, once a day or month. */
  percents?: number[] | undefined
}
export interface ModelsQuery {
  /** A part of the id, name, description or family. */ q?: string | undefined
  task?: 'chat' | 'code' | 'pictures' | 'thoughts' | 'embeddings' | undefined
  size?: '1b' | '4b' | '9b' | '30b' | 'larger' | undefined
  /** Only bases that this machine has the memory for. */ fits?: 'lora' | 'qlora' | 'full' | 'serve' | undefined
  /** `memory`: of a training by lora, least first. Default: the order of the catalogue. */
  sort?: 'name' | 'size' | 'context' | 'memory' | undefined
}
export interface HubListResponse {
  models: Model[]
}
export interface Model {
  id: string
  name: string
  description: string
  category: ModelCategory
  /** Its architecture, by transformers' name. Null where it is not known. */ family: string | null
  /** `thoughts`: it can think before it answers. */ tasks: ('chat' | 'code' | 'pictures' | 'thoughts' | 'embeddings')[]
  /** For models that read pictures; null for all others. */ pictures: {
    /** Whether the engine of this installation can show pictures to it. */ served: boolean
    /** Whether it can be trained on rows with pictures; if not, on rows of text alone. */ trained: boolean
    /** What does not work here, or is not tested. */ notes: string[]
  } | null
  params_billions: number
  /** Weights that compute a token. Fewer than `params_billions` where a token takes some of many experts. */
  active_params_billions: number
  /** Its class by all weights: up to 1, 5, 10 and 40 billion, or larger. A mixture 30B-A3B is a `30b`. */
  size: '1b' | '4b' | '9b' | '30b' | 'larger'
  context_length: number
  /** Hugging Face's name of it: for most, the SPDX identifier in lower case. */ license: string
  /** Its text, where it is not a standard license. */ license_url: string | null
  /** Whether its owner gives it only to those who accepted its license at Hugging Face: the service needs their token to download it. */
  gated: boolean
  huggingface_id: string | null
  /** The fine-tuning methods that this machine has the memory for and that worked with its family, once the weights are here: see `weights.available`. Empty: it cannot be trained. */
  methods: Method[]
  /** Whether what `lora` and `qlora` train becomes a whole model instead of an adapter, found when the base was added: the engine cannot serve adapters of it. Such a model takes the disk and memory of the base. */
  merges_adapters: boolean
  needs: Needs
  /** What was tried of a small model of its family, and what came of it: `yes`, `in part` where some models of it failed, `none` for what it does not have, or the sentence that a user gets. Null: not tried yet. */
  tested: { [k: string]: string } | null
  /** The base to begin with: the one that comes with the service or, where that is not here, the smallest. */
  recommended: boolean
  pricing: Pricing
  weights: {
    /** Whether the weights are on this machine, so that the model can be called and trained. */ available: boolean
    size_mb: number | null
    /** How to get them, if they are not here. */ how_to_get: string | null
    /** Whether answers come from the original alone: TUNERY_KEEP_ORIGINAL_WEIGHTS, or as the base was added. */
    keep_original: boolean
    /** The form that answers instead of the original. Null: the original does, or it is not made or measured yet. */
    eight_bits: EightBits | null
    /** Why the original answers though an eight-bit form would be faster here, and what to do. Null where nothing hinders that form. */
    eight_bits_problem: string | null
  }
  /** The last download of the weights by this service; null where there was none. */ download: Download | null
}
/** What it needs here, computed from its sizes; null where they are not known, or the use is not possible. Trainings are of rank 16, in batches of 4 rows of 512 tokens, of which a quarter are learned. Memory is that of the smallest GPU, or of the machine. `POST /v1/fine-tuning/jobs/estimate` measures a job of your own. */
export interface Needs {
  /** Memory of a training by lora. */ lora: Need | null
  /** Memory of a training by qlora. */ qlora: Need | null
  /** Memory of a training of all weights. */ full: Need | null
  /** Memory to answer: its weights as they are, and four conversations of 2,048 tokens. */ serve: Need | null
  /** Disk of its download and conversion. Null where the weights are here. */ disk: Need | null
}
export interface Need {
  mb: number
  /** Whether this machine has as much. */ fits: boolean
}
export interface Pricing {
  currency: string
  training_per_million_tokens: number
  input_per_million_tokens: number
  output_per_million_tokens: number
}
/** A form of the weights that is faster on this machine. */
export interface EightBits {
  /** Size of the file, on disk beside the original. It takes about as much memory. */ size_mb: number
  /** The quantization of the original, such as BF16. */ original_type: string
  /** How far its answers are from the original’s, as measured when it was made. */ distance: {
    /** Tokens of fixed texts that both forms have read. */ tokens: number
    /** Mean Kullback-Leibler divergence of the probabilities of the next token, in nats. */ divergence: number
    /** Mean absolute difference of the log-probability of the text’s next token, in nats. */ logprob_difference: number
    /** Share of the tokens after which both find the same token likeliest, 0 to 1. */ same_top: number
  }
}
export interface Download {
  /** `queued`: it waits for its turn, or for a retry after a temporary failure. */
  status: 'queued' | 'downloading' | 'converting' | 'completed' | 'failed' | 'cancelled'
  /** Share of the bytes that are here, 0 to 1. */ progress: number
  bytes: number
  /** Null until the hub has reported it. */ total_bytes: number | null
  /** Why it failed; if queued again, why the last try failed. */ error: ErrorText | null
}
export interface ErrorText {
  code: string
  message: string
}
export interface HubTiersResponse {
  tiers: Tier[]
}
export interface HubMachine {
  /** What trains. */ device: 'cpu' | 'gpu'
  cores: number
  /** For a training: of the smallest GPU, or of the machine. */ memory_mb: number
  free_disk_mb: number
  /** For this machine. Null: no base of the catalogue fits. */ recommended: Recommendation | null
  classes: {
    name: string
    /** What trains. */ device: 'cpu' | 'gpu'
    cores: number
    /** For a training: of the smallest GPU, or of the machine. */ memory_mb: number
    recommended: Recommendation | null
  }[]
}
/** The largest base for chat that trains by lora in that memory, and within an hour where the time is known. */
export interface Recommendation {
  model_id: string
  /** Of a training by lora. */ memory_mb: number
  /** Of 1,000 examples of 300 tokens, computed from measured rates. Null: none is measured there. */
  seconds: number | null
  /** The figures that chose it, in a sentence. */ why: string
}
export interface UploadFieldsInput {
  /** Default: the name of the file. */ name?: DisplayName | undefined
  description?: Description | undefined
  /** Default: what the first bytes of the file are, else what its name ends in, else jsonl. */
  format?: DatasetFormat | undefined
  /** JSON that maps each column to read to its name in the file, such as `{"prompt":"Question","completion":"Answer"}`. For files whose columns have other names; columns that it leaves out are not read. */
  columns?: string | undefined
  /** For a dataset of the Hugging Face Hub that is not public: your own token. It is used once and never stored. */
  hf_token?: string | undefined
}
export interface Dataset {
  id: string
  name: string
  description: string
  format: DatasetFormat
  /** Whether its rows have been read yet. */ status: 'preparing' | 'ready' | 'unreadable'
  /** What its rows can teach: answers (`sft`, rows of messages), which of two answers is better (`dpo`), or from rated answers (`kto`), or prompts alone (`reinforcement`, which takes the prompts of conversations and rated answers, too). Empty until they are read. */
  objectives: ('sft' | 'dpo' | 'kto' | 'reinforcement')[]
  rows: number
  /** How many of its rows cannot be trained on: jobs need 0. 0 until they are read. */ error_count: number
  /** How many pictures its rows have. Only a base of the category `multimodal` learns from them. */ pictures: number
  size_mb: number
  /** SHA-256 of the file as it was uploaded. */ sha256: string
  /** The names of the columns in the file, where the upload said them. */ columns: Columns | null
  created_at: Time
}
export interface Columns {
  [k: string]: string
}
export interface SortedQueryInput {
  /** 1 to 100. Default 20. A page of large items has fewer: about 8 MB at most. */ limit?: number | undefined
  /** The id after which the page begins. */ after?: string | undefined
  /** Those created later than this. */ created_after?: Time | undefined
  /** Those created earlier than this. */ created_before?: Time | undefined
  /** Default: newest first by created_at, asc by name. */ order?: 'asc' | 'desc' | undefined
  /** Those with this text in their name. ASCII letters match in either case. */ name?: string | undefined
  /** Default created_at. */ sort?: 'created_at' | 'name' | undefined
}
export interface DatasetsUpdateBody {
  name?: DisplayName | undefined
  description?: Description | undefined
}
export interface DatasetsValidateQuery {
  /** The base whose tokens are counted. */ model_id?: string | undefined
  /** Where rows are cut, as the `max_length` of a job; at most the context of the base. Default: that of a job. */
  max_length?: number | undefined
}
export interface Validation {
  valid: boolean
  total_samples: number
  /** With the chat template and tokenizer of the requested base, or the default base. */ avg_tokens_per_sample?: number
  /** Each begins with the line it is about. */ errors?: string[]
  /** How many rows are wrong; `errors` lists the first of them. */ error_count?: number
  /** The same as `errors`, for programs. */ issues?: DatasetIssue[]
  /** Findings that may be intended; the first of them. */ warnings?: DatasetIssue[]
  warning_count?: number
  /** Rows that repeat an earlier row of the file, word for word. */ duplicates?: number
  /** Rows whose prompt is in an earlier row of the file, with another answer. */ conflicts?: number
  /** Tokens of the valid rows. */ tokens?: {
    /** The base whose tokens these are. */ model_id: string
    total: number
    /** Number of rows in these figures: all valid ones. */ counted_rows: number
    longest: number
    /** Rows so much longer than `max_length` that they were not counted to their end: `total`, `longest` and `cut_tokens` include a lower bound of them. */
    bounded_rows: number
    /** Rows are cut at this many tokens. */ max_length: number
    /** Conversations are cut at their end, preferences at the front of their prompt. */ cut_rows: number
    cut_tokens: number
    /** Rows without a token to learn; a warning gives the line of each, or an error if all rows are such. */
    no_learned_rows: number
    /** Rows that the base’s chat template or tokenizer rejects; listed in errors. */ refused_rows: number
    /** The first of the rows that will be cut. */ cut: {
      /** The line of the uploaded file, counted from 1, where a row begins; of formats without lines (parquet, huggingface) the number of the row. */
      line: number
      /** Its number among the rows that could be read. */ row: number
      tokens: number
      cut_tokens: number
      /** Whether there are more than these. */ at_least: boolean
    }[]
    /** Rows by length in tokens. */ histogram: { up_to: number | null; rows: number }[]
  }
  /** Why tokens are missing: counting them took too long or too much memory. */ tokens_unknown?: string
}
export interface DatasetIssue {
  /** The line of the uploaded file, counted from 1, where a row begins; of formats without lines (parquet, huggingface) the number of the row. */
  line: number
  /** Stable. */ code: string
  message: string
  /** The line that a duplicate or a conflict is like. */ first_line?: number
}
export interface RowsQueryInput {
  /** 1 to 100. Default 20. A page of large items has fewer: about 8 MB at most. */ limit?: number | undefined
  /** The row after which the page begins. */ after?: number | undefined
}
export interface DatasetRow {
  /** Its number among the rows, counted from 1. */ row: number
  /** Its line in the uploaded file; of formats without lines the number of the row. */ line: number
  /** The messages of a pair, with the chosen answer. Pictures are parts with data URLs. */ messages: unknown[] | null
  /** The rejected answer of a pair. */ rejected?: { [k: string]: unknown }
}
export interface DatasetsPreviewQuery {
  /** The base; default: the default base. */ model_id?: string | undefined
  /** Where the row is cut, as the `max_length` of a job. */ max_length?: number | undefined
  /** The row, counted from 1. Default 1. */ row?: number | undefined
}
export interface Preview {
  model_id: string
  row: number
  messages: unknown[]
  /** The pictures of `messages`, in their order. */ pictures: {
    /** In pixels, as the picture is looked at. */ width: number
    height: number
    /** jpeg, png, webp or gif. */ format: string
    /** How many it is for this base. */ tokens: number
  }[]
  /** What the trainer sees: one sequence, or one a turn where the template renders earlier turns otherwise. */
  sequences: {
    tokens: {
      id: number
      text: string
      /** Whether the loss counts it. */ trained: boolean
    }[]
    /** How many more there are, beyond the length at which rows are cut; of a row that is far longer, at least. */
    cut_tokens: number
  }[]
}
export interface DatasetOfStoredInput {
  /** Which ones. Default: all. */ filter?: StoredFilter | undefined
  /** The newest so many. Default: all. */ limit?: number | undefined
  name?: DisplayName | undefined
  description?: Description | undefined
}
export interface StoredFilter {
  /** Those that were asked of this name. */ model?: string | undefined
  /** Those that have these pairs. */ metadata?: Metadata | undefined
  created_after?: Time | undefined
  created_before?: Time | undefined
}
/** Up to 16 pairs of your own: keys of up to 64 characters, values of up to 512. */
export interface Metadata {
  [k: string]: string
}
export interface CreateJobInput {
  /** A base model of the hub, or a model of the account to continue from. */ model_id: string
  /** The dataset to train on. */ dataset_id: string
  /** How to train; everything in it may be left out. */ config?: JobConfigInput | undefined
  /** An evaluation of the account. When the job is done, its result answers the same rows beside the model that training started from, and the same graders score the answers. */
  evaluation?: string | undefined
  /** Name of the job and of the model that it makes. Default: made of the names of the dataset and the base. */
  name?: DisplayName | undefined
  /** What you want to remember of it; the model gets it too. */ description?: Description | undefined
  /** Up to 16 pairs of your own: keys of up to 64 characters, values of up to 512; the model gets them too. */
  metadata?: Metadata | undefined
}
export interface JobConfigInput {
  /** An adapter (`lora`), an adapter on the base in 4 bits (`qlora`), or all weights (`full`). */
  method?: Method | undefined
  /** What is learned: answers or preferences, and by which loss. */ method_options?: {
    /** What is learned: answers (`sft`), which of two answers is better (`dpo`), from answers rated as good or bad (`kto`), or from the scores that graders give the answers of the model itself (`reinforcement`). The rows must be of that kind; `reinforcement` takes the prompts of conversations and rated answers, too. */
    objective?: 'sft' | 'dpo' | 'kto' | 'reinforcement' | undefined
    /** For `dpo` and `kto`: how strongly the model is kept near the model that it starts from. Smaller: it may move further. */
    beta?: number | undefined
    /** For `dpo`: `sigmoid` (the loss of the paper), `ipo` (against overfitting to clear preferences) or `robust` (for preferences of which a known share, `label_smoothing`, is wrong). */
    loss_type?: 'sigmoid' | 'ipo' | 'robust' | undefined
    /** For `dpo` with `sigmoid` or `robust`: the share of the preferences that is assumed to be wrong. */
    label_smoothing?: number | undefined
    /** For `dpo`: weight of an added loss that teaches the chosen answers as `sft` does. */
    sft_weight?: number | undefined
    /** For `kto`: weight of the answers rated as good. Raise it where they are few. */
    desirable_weight?: number | undefined
    /** For `kto`: weight of the answers rated as bad. Raise it where they are few. */
    undesirable_weight?: number | undefined
    /** For `reinforcement`: the grader whose score is the reward. Another form of `graders` with one. */
    grader?: GraderInput | undefined
    /** For `reinforcement`: graders as of evaluations. The reward of an answer is the mean of their scores; a `multi` grader weighs them otherwise. */
    graders?: GradersInput | undefined
    /** For `reinforcement`: graders whose scores are reported beside the reward and are no part of it, in evaluations, and in each step where they ask no model, no code and no endpoint. */
    watched_graders?: GradersInput | undefined
    /** For `reinforcement`: endpoints that answer the model turn by turn and may reward it. A row chooses one by its field `environment`; without that field it has the first, with null none. */
    environments?: EnvironmentsInput | undefined
    /** For `reinforcement`: whether an answer to a row with `tools` has to call one, as in chat requests. */
    tool_choice?: 'auto' | 'required' | undefined
    /** For `reinforcement`: what is minimized. `dapo` (mean over all tokens, clipped further upwards than downwards), `grpo` (mean of the means of answers), `dr_grpo` (sums over a constant, scores not divided by their deviation), `gspo` (ratios of whole answers), `cispo` (clips weights, never gradients) or `rloo` (scores less the mean of the others, no clipping). */
    policy_loss?: 'dapo' | 'grpo' | 'dr_grpo' | 'gspo' | 'cispo' | 'rloo' | undefined
    /** For `reinforcement`: answers to each prompt in a step, which are compared with each other. */
    group_size?: number | undefined
    /** For `reinforcement`: most tokens of an answer. A longer one is cut and graded as it is. */
    max_tokens?: number | undefined
    /** For `reinforcement`: how far below 1 the ratio of probabilities may fall before it is clipped. */
    clip_low?: number | undefined
    /** For `reinforcement`: how far above 1 the ratio of probabilities may rise before it is clipped. */
    clip_high?: number | undefined
    /** For `reinforcement`: the most that a token weighs to correct the difference between the probabilities of the engine, which samples, and those of the trainer. */
    importance_cap?: number | undefined
    /** For `reinforcement`: into how many updates the answers of a step are divided. */
    updates_per_step?: number | undefined
    /** For `reinforcement`: how often further prompts are taken in a step for those whose answers all have the same score, and so teach nothing. */
    refill_rounds?: number | undefined
    /** For `reinforcement`: when grading ends, as of evaluations: `error_share_max`, `judge_tokens_max`, `judge_cost_max`. Answers that a grader fails to score are left out and counted. */
    grading?: GradingLimitsInput | undefined
    /** For `reinforcement`: answers to each held-out prompt in an evaluation. */
    evaluation_samples?: number | undefined
    /** For `reinforcement`: the form that answers have to have, as in chat requests. */
    response_format?: JsonObject | undefined
    /** For `reinforcement`: how much a model that thinks is asked to, as in chat requests. */
    reasoning_effort?: 'none' | 'minimal' | 'low' | 'medium' | 'high' | 'xhigh' | undefined
  } | undefined
  /** The adapter, for `lora` and `qlora`. */ lora_config?: {
    /** Rank of the adapter: how much it can learn, and how large it is. */ r?: number | undefined
    /** Scale of the adapter: what it adds is multiplied by alpha / r. */ alpha?: number | undefined
    /** Share of the adapter’s inputs that each training step drops. */ dropout?: number | undefined
    /** Names of the linear layers that get an adapter, such as `q_proj`; `all-linear` for all. With `projector` the layers between the vision tower and the language model of a base that reads pictures are trained, too, with all their weights. Full training takes `["all-linear", "projector"]` for that, and no other of these settings. */
    target_modules?: string[] | undefined
    /** Whether the experts of a mixture get adapters too, one for each: they learn more, and take the memory and the size of many adapters. The router that chooses among them stays as it is. Needs a `dropout` of 0. */
    experts?: boolean | undefined
  } | undefined
  /** The training. */ training_config?: {
    /** Number of passes over the whole dataset. */ epochs?: number | undefined
    /** Examples per optimizer step; with `reinforcement` prompts. */ batch_size?: number | undefined
    /** Learning rate at its peak; it falls to 0 along a cosine. */ learning_rate?: number | undefined
    /** Share of the steps in which the learning rate rises to its peak. */ warmup_ratio?: number | undefined
    /** Seed of the order of the rows, of the held-out rows and of new weights. */ seed?: number | undefined
    /** Tokens at which rows are cut; at most the context of the base. */ max_length?: number | undefined
  } | undefined
  /** What is evaluated and kept during the training. */ evaluation_config?: {
    /** Share of the rows that is held out and evaluated during the training. */ validation_split?: number | undefined
    /** A dataset to evaluate instead of a share of the rows. */ validation_dataset_id?: string | undefined
    /** Optimizer steps from one evaluation to the next. */ every_steps?: number | undefined
    /** End after this many evaluations without a better loss, or reward; the best state is the result. */
    early_stopping_patience?: number | undefined
    /** Prompts answered at each evaluation, with the answer of the base: a text, or messages. */ sample_prompts?: (
      | string
      | {
          /** Role of the message. */ role: 'system' | 'user' | 'assistant'
          /** Text of the message. */ content: string
        }[]
    )[] | undefined
    /** How many of the newest evaluated states become models. */ keep_checkpoints?: number | undefined
  } | undefined
}
export interface StringCheckGrader {
  type: 'string_check'
  name: ShortName
  input: string
  reference: string
  /** Equal, not equal, contains, contains whatever the case of letters. */ operation: 'eq' | 'ne' | 'like' | 'ilike'
}
export interface TextSimilarityGraderInput {
  type: 'text_similarity'
  name: ShortName
  input: string
  reference: string
  evaluation_metric:
    'fuzzy_match' | 'bleu' | 'gleu' | 'rouge_1' | 'rouge_2' | 'rouge_3' | 'rouge_4' | 'rouge_5' | 'rouge_l'
  pass_threshold?: number | undefined
}
export interface LabelModelGrader {
  type: 'label_model'
  name: ShortName
  /** A model of this service that judges. */ model: string
  input: TemplateMessage[]
  labels: string[]
  passing_labels: string[]
}
export interface TemplateMessage {
  type?: 'message' | undefined
  role: 'user' | 'assistant' | 'system' | 'developer'
  content: string | TemplatePart | (string | TemplatePart)[]
}
export interface TemplatePart {
  type: 'input_text' | 'output_text'
  text: string
}
export interface ScoreModelGraderInput {
  type: 'score_model'
  name: ShortName
  /** A model of this service that judges. */ model: string
  input: TemplateMessage[]
  /** The lowest and the highest score. */ range?: [number, number] | undefined
  /** Default: the middle of the range. */ pass_threshold?: number | null | undefined
  /** How the judge answers. */ sampling_params?: {
    /** Default 0. */ temperature?: number | null | undefined
    top_p?: number | null | undefined
    seed?: Seed | null | undefined
    /** Default 64, and not less. */ max_completions_tokens?: number | null | undefined
    /** Without effect: a judge answers in a form. */ reasoning_effort?: string | null | undefined
  } | null | undefined
}
export interface JsonSchemaGraderInput {
  type: 'json_schema'
  name: ShortName
  /** What is graded. Default: the text of the answer. */ input?: string | undefined
  /** The JSON Schema that the answer must satisfy. */ schema: JsonObject
}
export interface JsonObject {
  [k: string]: unknown
}
export interface JsonEqualGraderInput {
  type: 'json_equal'
  name: ShortName
  /** What is graded. Default: the text of the answer. */ input?: string | undefined
  /** What it is compared with. Default: the answer of the row. */ reference?: string | undefined
  /** The fields that are compared, such as `address.city`. Default: all of the reference. */
  fields?: string[] | undefined
}
export interface ContainsGraderInput {
  type: 'contains'
  name: ShortName
  /** What is graded. Default: the text of the answer. */ input?: string | undefined
  /** What it is compared with. Default: the answer of the row. */ reference?: string | undefined
  ignore_case?: boolean | undefined
}
export interface RegexGraderInput {
  type: 'regex'
  name: ShortName
  /** What is graded. Default: the text of the answer. */ input?: string | undefined
  /** An RE2 pattern: no back-references and no look-around, so that every text is searched in linear time. */
  pattern: string
  ignore_case?: boolean | undefined
  /** Whether the answer must not match. */ negate?: boolean | undefined
}
export interface ToolCallGrader {
  type: 'tool_call'
  name: ShortName
  /** Default: the call of the row’s answer. */ function?: string | undefined
  /** Arguments that the call must have; it may have more. Default: those of the row’s answer. */
  arguments?: JsonObject | undefined
}
export interface PythonGraderInput {
  type: 'python'
  name: ShortName
  /** Defines `grade(sample, item)`, which returns a number. Python 3.14 with its standard library, in a sandbox without files, network and processes, with 256 MiB and 10 seconds an answer. */
  source: string
  /** Without effect: there is one image. */ image_tag?: string | null | undefined
  pass_threshold?: number | undefined
}
export interface EndpointGraderInput {
  type: 'endpoint'
  name: ShortName
  /** An https address that is posted `{"grader", "sample", "item"}` and answers `{"score": 0.5}`. */ url: string
  /** Which secret of the account signs the requests, as webhooks are signed. */ secret_name?: string | undefined
  /** How long an answer may take. */ timeout_seconds?: number | undefined
  pass_threshold?: number | undefined
}
export interface MultiGraderInput {
  type: 'multi'
  name: ShortName
  graders: { [k: string]: SimpleGraderInput }
  /** Arithmetic over the scores by name: `0.5 * a + 0.5 * min(b, c)`. */ calculate_output: string
  pass_threshold?: number | undefined
}
export interface EnvironmentInput {
  /** What rows call it, and what its reward is called among graders. */ name?: ShortName | undefined
  /** An https address that is posted `{"environment", "episode", "turn", "last", "item", "messages"}` after each answer of the model, and answers `{"messages": [{"role": "tool", …}], "reward": 1, "done": false}`. */
  url: string
  /** Which secret of the account signs the requests, as webhooks are signed. */ secret_name?: string | undefined
  /** How long an answer may take. */ timeout_seconds?: number | undefined
  /** Whether the sum of its rewards in an episode is a score. Each episode must then have one. */
  rewards?: boolean | undefined
  /** Most answers of the model in an episode. */ turns_max?: number | undefined
  /** Most tokens of an episode behind its prompt, of the model and of the environment. */
  tokens_max?: number | undefined
}
export interface GradingLimitsInput {
  /** Grading ends when a larger share of the answers has no score, because a grader failed. */
  error_share_max?: number | undefined
  /** Grading ends when its judges have used so many tokens, of prompts and answers. Default: no limit. */
  judge_tokens_max?: number | undefined
  /** The same by the cost of its judges, in the currency of the prices. Default: no limit. */
  judge_cost_max?: number | undefined
}
export interface Job {
  id: string
  name: string
  description: string
  metadata: Metadata
  status: 'queued' | 'running' | 'paused' | 'completed' | 'failed' | 'cancelled'
  /** Whether the job is paused until it is resumed. While its progress is being saved, the status is `running`. */
  paused: boolean
  model_id: string
  dataset_id: string
  /** 0 to 1. */ progress: number
  current_epoch: number
  metrics: JobMetrics
  /** What takes processor time from a running job now: answers of this service, or other programs of the machine. Null: nothing. */
  slowed_by: ('serving' | 'other_work') | null
  /** What a queued job waits for besides its turn: the training environment, which is being installed behind the first start, the weights of its base, or a device with enough free memory. */
  waits_for: string | null
  /** Place of a queued job: 1 is the next to begin. */ queue_position: number | null
  /** Start of a queued job, estimated from similar jobs and the turns of accounts. Null if there are none. */
  estimated_start: Time | null
  /** With the pauses for the turns of other accounts. */ estimated_completion: Time | null
  created_at: Time
  started_at: Time | null
  finished_at: Time | null
  error: { code: string; message: string } | null
  config: JobConfig
  resolved_config: ResolvedConfig
  /** Non-padding tokens, prompts included, times epochs. */ trained_tokens: number
  /** The result, once completed: an id that inference and deployments take. */ model: string | null
  /** The evaluation that the job named. */ evaluation: string | null
  /** The evaluation of the result, once completed. */ result_evaluation: string | null
}
export interface JobMetrics {
  /** The step of these losses: the latest reported one, or once completed the one whose weights are the result. */
  step?: number
  /** Once completed. More than `step` if an earlier state was the best. */ steps_trained?: number
  steps_total?: number
  /** Loss of the batch of this step. */ loss?: number
  learning_rate?: number
  tokens_per_second?: number
  /** Mean over the epoch up to this step if it was evaluated or is the result; otherwise of its batch. */
  train_loss?: number
  train_seconds?: number
  /** The first estimate of `train_seconds`, after three steps. */ predicted_seconds?: number
  peak_memory_mb?: number
  /** The prediction of `peak_memory_mb` before the start. */ predicted_memory_mb?: number
  /** With preferences: how much more the good answers of the batch are rewarded than the bad ones. */
  reward_margin?: number
  /** Share of the preferences of the batch on whose side the model is. */ reward_accuracy?: number
  /** With `reinforcement`: the mean score of all answers of the step. */ reward?: number
  /** The standard deviation of these scores. */ reward_deviation?: number
  /** Mean length of the answers of the step, in tokens. */ answer_tokens?: number
  /** How many of these tokens are thoughts, on average. */ reasoning_tokens?: number
  /** Mean number of the answers of the model in an episode of an environment. */ turns?: number
  /** Share of the answers that were cut at `max_tokens`. */ cut_share?: number
  /** Mean of minus the log-probability of the sampled tokens, in nats: how open the answers still are. */
  entropy?: number
  /** Share of the trained tokens whose gradient was clipped away. */ clipped_share?: number
  /** Share of the prompts whose answers all got the same score. */ equal_share?: number
  /** Share of the answers of a prompt that differ from the others. */ distinct_share?: number
  /** Mean difference of the log-probabilities of engine and trainer, without its sign, in nats. */
  probability_gap?: number
  /** Tokens that were sampled so far. */ generated_tokens?: number
  /** Mean time of grading an answer. */ grader_seconds?: number
  /** Time within which 19 of 20 answers were graded. */ grader_seconds_p95?: number
  /** Mean time that an environment took in an episode. */ environment_seconds?: number
  /** Answers of the step that a grader could not score; they are left out. */ grader_failures?: number
  /** Validation loss after this step, if it was evaluated. */ validation_loss?: number
  /** Share of the held-out rows whose every learned token was the first choice. */ validation_exact?: number
  /** Share of the learned tokens of the held-out rows that were the first choice. */ validation_accuracy?: number
  /** With preferences: how much more the good answers are rewarded than the bad ones, on average. */
  validation_reward_margin?: number
  /** Share of the held-out preferences on whose side the model is. */ validation_reward_accuracy?: number
  /** With `reinforcement`: the mean score of the answers to the held-out prompts. */ validation_reward?: number
  /** With `reinforcement`: how far the model has moved from its base: the estimated Kullback-Leibler divergence of a token of these answers, in nats. */
  validation_kl?: number
  /** Mean length of these answers, in tokens. */ validation_answer_tokens?: number
  /** How many of these tokens are thoughts, on average. */ validation_reasoning_tokens?: number
  /** Share of these answers that were cut. */ validation_cut_share?: number
}
export interface JobConfig {
  /** An adapter (`lora`), an adapter on the base in 4 bits (`qlora`), or all weights (`full`). */ method?: Method
  /** What is learned: answers or preferences, and by which loss. */ method_options?: {
    /** What is learned: answers (`sft`), which of two answers is better (`dpo`), from answers rated as good or bad (`kto`), or from the scores that graders give the answers of the model itself (`reinforcement`). The rows must be of that kind; `reinforcement` takes the prompts of conversations and rated answers, too. */
    objective?: 'sft' | 'dpo' | 'kto' | 'reinforcement'
    /** For `dpo` and `kto`: how strongly the model is kept near the model that it starts from. Smaller: it may move further. */
    beta?: number
    /** For `dpo`: `sigmoid` (the loss of the paper), `ipo` (against overfitting to clear preferences) or `robust` (for preferences of which a known share, `label_smoothing`, is wrong). */
    loss_type?: 'sigmoid' | 'ipo' | 'robust'
    /** For `dpo` with `sigmoid` or `robust`: the share of the preferences that is assumed to be wrong. */
    label_smoothing?: number
    /** For `dpo`: weight of an added loss that teaches the chosen answers as `sft` does. */ sft_weight?: number
    /** For `kto`: weight of the answers rated as good. Raise it where they are few. */ desirable_weight?: number
    /** For `kto`: weight of the answers rated as bad. Raise it where they are few. */ undesirable_weight?: number
    /** For `reinforcement`: the grader whose score is the reward. Another form of `graders` with one. */
    grader?: Grader
    /** For `reinforcement`: graders as of evaluations. The reward of an answer is the mean of their scores; a `multi` grader weighs them otherwise. */
    graders?: Graders
    /** For `reinforcement`: graders whose scores are reported beside the reward and are no part of it, in evaluations, and in each step where they ask no model, no code and no endpoint. */
    watched_graders?: Graders
    /** For `reinforcement`: endpoints that answer the model turn by turn and may reward it. A row chooses one by its field `environment`; without that field it has the first, with null none. */
    environments?: Environments
    /** For `reinforcement`: whether an answer to a row with `tools` has to call one, as in chat requests. */
    tool_choice?: 'auto' | 'required'
    /** For `reinforcement`: what is minimized. `dapo` (mean over all tokens, clipped further upwards than downwards), `grpo` (mean of the means of answers), `dr_grpo` (sums over a constant, scores not divided by their deviation), `gspo` (ratios of whole answers), `cispo` (clips weights, never gradients) or `rloo` (scores less the mean of the others, no clipping). */
    policy_loss?: 'dapo' | 'grpo' | 'dr_grpo' | 'gspo' | 'cispo' | 'rloo'
    /** For `reinforcement`: answers to each prompt in a step, which are compared with each other. */
    group_size?: number
    /** For `reinforcement`: most tokens of an answer. A longer one is cut and graded as it is. */ max_tokens?: number
    /** For `reinforcement`: how far below 1 the ratio of probabilities may fall before it is clipped. */
    clip_low?: number
    /** For `reinforcement`: how far above 1 the ratio of probabilities may rise before it is clipped. */
    clip_high?: number
    /** For `reinforcement`: the most that a token weighs to correct the difference between the probabilities of the engine, which samples, and those of the trainer. */
    importance_cap?: number
    /** For `reinforcement`: into how many updates the answers of a step are divided. */ updates_per_step?: number
    /** For `reinforcement`: how often further prompts are taken in a step for those whose answers all have the same score, and so teach nothing. */
    refill_rounds?: number
    /** For `reinforcement`: when grading ends, as of evaluations: `error_share_max`, `judge_tokens_max`, `judge_cost_max`. Answers that a grader fails to score are left out and counted. */
    grading?: GradingLimits
    /** For `reinforcement`: answers to each held-out prompt in an evaluation. */ evaluation_samples?: number
    /** For `reinforcement`: the form that answers have to have, as in chat requests. */ response_format?: JsonObject
    /** For `reinforcement`: how much a model that thinks is asked to, as in chat requests. */
    reasoning_effort?: 'none' | 'minimal' | 'low' | 'medium' | 'high' | 'xhigh'
  }
  /** The adapter, for `lora` and `qlora`. */ lora_config?: {
    /** Rank of the adapter: how much it can learn, and how large it is. */ r?: number
    /** Scale of the adapter: what it adds is multiplied by alpha / r. */ alpha?: number
    /** Share of the adapter’s inputs that each training step drops. */ dropout?: number
    /** Names of the linear layers that get an adapter, such as `q_proj`; `all-linear` for all. With `projector` the layers between the vision tower and the language model of a base that reads pictures are trained, too, with all their weights. Full training takes `["all-linear", "projector"]` for that, and no other of these settings. */
    target_modules?: string[]
    /** Whether the experts of a mixture get adapters too, one for each: they learn more, and take the memory and the size of many adapters. The router that chooses among them stays as it is. Needs a `dropout` of 0. */
    experts?: boolean
  }
  /** The training. */ training_config?: {
    /** Number of passes over the whole dataset. */ epochs?: number
    /** Examples per optimizer step; with `reinforcement` prompts. */ batch_size?: number
    /** Learning rate at its peak; it falls to 0 along a cosine. */ learning_rate?: number
    /** Share of the steps in which the learning rate rises to its peak. */ warmup_ratio?: number
    /** Seed of the order of the rows, of the held-out rows and of new weights. */ seed?: number
    /** Tokens at which rows are cut; at most the context of the base. */ max_length?: number
  }
  /** What is evaluated and kept during the training. */ evaluation_config?: {
    /** Share of the rows that is held out and evaluated during the training. */ validation_split?: number
    /** A dataset to evaluate instead of a share of the rows. */ validation_dataset_id?: string
    /** Optimizer steps from one evaluation to the next. */ every_steps?: number
    /** End after this many evaluations without a better loss, or reward; the best state is the result. */
    early_stopping_patience?: number
    /** Prompts answered at each evaluation, with the answer of the base: a text, or messages. */ sample_prompts?: (
      | string
      | {
          /** Role of the message. */ role: 'system' | 'user' | 'assistant'
          /** Text of the message. */ content: string
        }[]
    )[]
    /** How many of the newest evaluated states become models. */ keep_checkpoints?: number
  }
}
export interface TextSimilarityGrader {
  type: 'text_similarity'
  name: ShortName
  input: string
  reference: string
  evaluation_metric:
    'fuzzy_match' | 'bleu' | 'gleu' | 'rouge_1' | 'rouge_2' | 'rouge_3' | 'rouge_4' | 'rouge_5' | 'rouge_l'
  pass_threshold: number
}
export interface ScoreModelGrader {
  type: 'score_model'
  name: ShortName
  /** A model of this service that judges. */ model: string
  input: TemplateMessage[]
  /** The lowest and the highest score. */ range: [number, number]
  /** Default: the middle of the range. */ pass_threshold?: number | null
  /** How the judge answers. */ sampling_params?: {
    /** Default 0. */ temperature?: number | null
    top_p?: number | null
    seed?: Seed | null
    /** Default 64, and not less. */ max_completions_tokens?: number | null
    /** Without effect: a judge answers in a form. */ reasoning_effort?: string | null
  } | null
}
export interface JsonSchemaGrader {
  type: 'json_schema'
  name: ShortName
  /** What is graded. Default: the text of the answer. */ input: string
  /** The JSON Schema that the answer must satisfy. */ schema: JsonObject
}
export interface JsonEqualGrader {
  type: 'json_equal'
  name: ShortName
  /** What is graded. Default: the text of the answer. */ input: string
  /** What it is compared with. Default: the answer of the row. */ reference: string
  /** The fields that are compared, such as `address.city`. Default: all of the reference. */ fields?: string[]
}
export interface ContainsGrader {
  type: 'contains'
  name: ShortName
  /** What is graded. Default: the text of the answer. */ input: string
  /** What it is compared with. Default: the answer of the row. */ reference: string
  ignore_case: boolean
}
export interface RegexGrader {
  type: 'regex'
  name: ShortName
  /** What is graded. Default: the text of the answer. */ input: string
  /** An RE2 pattern: no back-references and no look-around, so that every text is searched in linear time. */
  pattern: string
  ignore_case: boolean
  /** Whether the answer must not match. */ negate: boolean
}
export interface PythonGrader {
  type: 'python'
  name: ShortName
  /** Defines `grade(sample, item)`, which returns a number. Python 3.14 with its standard library, in a sandbox without files, network and processes, with 256 MiB and 10 seconds an answer. */
  source: string
  /** Without effect: there is one image. */ image_tag?: string | null
  pass_threshold: number
}
export interface EndpointGrader {
  type: 'endpoint'
  name: ShortName
  /** An https address that is posted `{"grader", "sample", "item"}` and answers `{"score": 0.5}`. */ url: string
  /** Which secret of the account signs the requests, as webhooks are signed. */ secret_name: string
  /** How long an answer may take. */ timeout_seconds: number
  pass_threshold: number
}
export interface MultiGrader {
  type: 'multi'
  name: ShortName
  graders: { [k: string]: SimpleGrader }
  /** Arithmetic over the scores by name: `0.5 * a + 0.5 * min(b, c)`. */ calculate_output: string
  pass_threshold: number
}
export interface Environment {
  /** What rows call it, and what its reward is called among graders. */ name: ShortName
  /** An https address that is posted `{"environment", "episode", "turn", "last", "item", "messages"}` after each answer of the model, and answers `{"messages": [{"role": "tool", …}], "reward": 1, "done": false}`. */
  url: string
  /** Which secret of the account signs the requests, as webhooks are signed. */ secret_name: string
  /** How long an answer may take. */ timeout_seconds: number
  /** Whether the sum of its rewards in an episode is a score. Each episode must then have one. */ rewards: boolean
  /** Most answers of the model in an episode. */ turns_max: number
  /** Most tokens of an episode behind its prompt, of the model and of the environment. */ tokens_max: number
}
export interface GradingLimits {
  /** Grading ends when a larger share of the answers has no score, because a grader failed. */ error_share_max: number
  /** Grading ends when its judges have used so many tokens, of prompts and answers. Default: no limit. */
  judge_tokens_max?: number
  /** The same by the cost of its judges, in the currency of the prices. Default: no limit. */ judge_cost_max?: number
}
export interface ResolvedConfig {
  method: { value: Method; source: 'request' | 'default' | 'base_size' | 'model' }
  method_options: {
    objective: { value: 'sft' | 'dpo' | 'kto' | 'reinforcement'; source: 'request' | 'default' | 'base_size' | 'model' }
    beta: { value: number; source: 'request' | 'default' | 'base_size' | 'model' }
    loss_type: { value: 'sigmoid' | 'ipo' | 'robust'; source: 'request' | 'default' | 'base_size' | 'model' }
    label_smoothing: { value: number; source: 'request' | 'default' | 'base_size' | 'model' }
    sft_weight: { value: number; source: 'request' | 'default' | 'base_size' | 'model' }
    desirable_weight: { value: number; source: 'request' | 'default' | 'base_size' | 'model' }
    undesirable_weight: { value: number; source: 'request' | 'default' | 'base_size' | 'model' }
    graders: { value: JsonObject[]; source: 'request' | 'default' | 'base_size' | 'model' }
    watched_graders: { value: JsonObject[]; source: 'request' | 'default' | 'base_size' | 'model' }
    environments: { value: JsonObject[]; source: 'request' | 'default' | 'base_size' | 'model' }
    tool_choice: { value: 'auto' | 'required'; source: 'request' | 'default' | 'base_size' | 'model' }
    policy_loss: {
      value: 'dapo' | 'grpo' | 'dr_grpo' | 'gspo' | 'cispo' | 'rloo'
      source: 'request' | 'default' | 'base_size' | 'model'
    }
    group_size: { value: number; source: 'request' | 'default' | 'base_size' | 'model' }
    max_tokens: { value: number; source: 'request' | 'default' | 'base_size' | 'model' }
    clip_low: { value: number | null; source: 'request' | 'default' | 'base_size' | 'model' }
    clip_high: { value: number | null; source: 'request' | 'default' | 'base_size' | 'model' }
    importance_cap: { value: number; source: 'request' | 'default' | 'base_size' | 'model' }
    updates_per_step: { value: number; source: 'request' | 'default' | 'base_size' | 'model' }
    refill_rounds: { value: number; source: 'request' | 'default' | 'base_size' | 'model' }
    grading: {
      value: {
        /** Grading ends when a larger share of the answers has no score, because a grader failed. */
        error_share_max: number
        /** Grading ends when its judges have used so many tokens, of prompts and answers. Default: no limit. */
        judge_tokens_max?: number
        /** The same by the cost of its judges, in the currency of the prices. Default: no limit. */
        judge_cost_max?: number
      }
      source: 'request' | 'default' | 'base_size' | 'model'
    }
    evaluation_samples: { value: number; source: 'request' | 'default' | 'base_size' | 'model' }
    response_format: { value: JsonObject | null; source: 'request' | 'default' | 'base_size' | 'model' }
    reasoning_effort: {
      value: ('none' | 'minimal' | 'low' | 'medium' | 'high' | 'xhigh') | null
      source: 'request' | 'default' | 'base_size' | 'model'
    }
  }
  /** Null for full training. */ lora_config: {
    r: { value: number; source: 'request' | 'default' | 'base_size' | 'model' }
    alpha: { value: number; source: 'request' | 'default' | 'base_size' | 'model' }
    dropout: { value: number; source: 'request' | 'default' | 'base_size' | 'model' }
    /** In the language model. `all-linear` until the weights of the base have been downloaded. */
    target_modules: { value: string[]; source: 'request' | 'default' | 'base_size' | 'model' }
    experts: { value: boolean; source: 'request' | 'default' | 'base_size' | 'model' }
  } | null
  /** Whether the projector of a base that reads pictures is trained too: as `target_modules` says. */
  projector?: { value: boolean; source: 'request' | 'default' | 'base_size' | 'model' }
  training_config: {
    epochs: { value: number; source: 'request' | 'default' | 'base_size' | 'model' }
    batch_size: { value: number; source: 'request' | 'default' | 'base_size' | 'model' }
    learning_rate: { value: number; source: 'request' | 'default' | 'base_size' | 'model' }
    warmup_ratio: { value: number; source: 'request' | 'default' | 'base_size' | 'model' }
    scheduler: { value: 'cosine'; source: 'request' | 'default' | 'base_size' | 'model' }
    seed: { value: number; source: 'request' | 'default' | 'base_size' | 'model' }
    max_length: { value: number; source: 'request' | 'default' | 'base_size' | 'model' }
  }
  evaluation_config: {
    validation_split: { value: number; source: 'request' | 'default' | 'base_size' | 'model' }
    validation_dataset_id: { value: string | null; source: 'request' | 'default' | 'base_size' | 'model' }
    /** Null: at the end of each epoch. */
    every_steps: { value: number | null; source: 'request' | 'default' | 'base_size' | 'model' }
    early_stopping_patience: { value: number | null; source: 'request' | 'default' | 'base_size' | 'model' }
    sample_prompts: {
      value: { role: string; content: string }[][]
      source: 'request' | 'default' | 'base_size' | 'model'
    }
    keep_checkpoints: { value: number; source: 'request' | 'default' | 'base_size' | 'model' }
  }
  /** The tokenizer of the base, frozen with the job: the hashes of its tokenizer.json and of its chat template, and its end token. */
  tokenizer?: { sha256: string | null; chat_template_sha256: string; eos_token: string | null }
  /** Whether text of rows that spells a control token becomes that token: the setting of the service, frozen with the job. */
  parse_control_tokens?: boolean
}
export interface JobEstimate {
  /** Whether the memory that is free now is enough. */ fits: boolean
  peak_memory_mb: number
  available_memory_mb: number
  /** On how many devices (GPUs) it would run. With several that share the weights of a base too large for one, nothing is tried: the memory is predicted, of each device, and the other figures are null. */
  devices: number
  /** Whether too little memory is free now and the job would put to sleep what is served there, which the operator allows (TUNERY_TRAINING_MAY_PAUSE_SERVING). */
  pauses_serving: boolean
  /** Tokens of the training: without padding, with prompts, times epochs. Null if it does not fit. */
  tokens: number | null
  /** With `reinforcement`: the most tokens that the answers of all steps and evaluations may have. Nothing is tried: tokens, time and price depend on how long the answers become, and are null. */
  generated_tokens_max?: number | null
  /** With `reinforcement`: the time for so many tokens, at the rate of the last completed job of that objective on this base. Null if there was none. */
  seconds_max?: number | null
  steps: number | null
  /** How many rows will be trained on. Null where it does not fit. */ rows: number | null
  /** Rows that are longer than `max_length` and are cut there, including those left without a token to learn. */
  cut_rows: number | null
  /** Rows that are left out, as nothing of their answers is within `max_length`. */ no_learned_rows: number | null
  /** From its start to the registered result, with nothing else on the machine. */ seconds: number | null
  tokens_per_second: number | null
  price: { amount: number; currency: string } | null
  resolved_config: ResolvedConfig
}
export interface JobQueryInput {
  /** 1 to 100. Default 20. A page of large items has fewer: about 8 MB at most. */ limit?: number | undefined
  /** The id after which the page begins. */ after?: string | undefined
  /** Those created later than this. */ created_after?: Time | undefined
  /** Those created earlier than this. */ created_before?: Time | undefined
  /** Default: newest first by created_at, asc by name. */ order?: 'asc' | 'desc' | undefined
  /** Those with this text in their name. ASCII letters match in either case. */ name?: string | undefined
  /** Default created_at. */ sort?: 'created_at' | 'name' | undefined
  /** Those with this status. */
  status?: 'queued' | 'running' | 'paused' | 'completed' | 'failed' | 'cancelled' | undefined
  /** Those with this pair of metadata, as `key=value`. */ metadata?: string | undefined
}
export interface Labels {
  name?: DisplayName | undefined
  description?: Description | undefined
  /** All pairs: they replace those before. */ metadata?: Metadata | undefined
}
export interface JobsEventsQuery {
  /** Continue after this `seq`. Default 0. */ after?: number | undefined
}
export interface JobEvent {
  type: 'status' | 'progress' | 'metrics' | 'checkpoint' | 'sample' | 'log' | 'warning' | 'error'
  message: string
  seq: number
  created_at: Time
  data?: { [k: string]: unknown }
}
export interface JobsEvaluationsQuery {
  /** 1 to 100. Default 20. A page of large items has fewer: about 8 MB at most. */ limit?: number | undefined
  /** The step before which the page begins. */ after?: number | undefined
}
export interface JobEvaluation {
  step: number
  /** Mean loss on the held-out rows. Not there with `reinforcement`, which has `validation_reward`. */
  validation_loss?: number
  /** Share of the held-out rows whose every learned token was the first choice. */ validation_exact?: number
  /** Share of the learned tokens of the held-out rows that were the first choice. */ validation_accuracy?: number
  /** With preferences: how much more the good answers are rewarded than the bad ones, on average. */
  validation_reward_margin?: number
  /** Share of the held-out preferences on whose side the model is. */ validation_reward_accuracy?: number
  /** With `reinforcement`: the mean score of the answers to the held-out prompts. */ validation_reward?: number
  /** With `reinforcement`: how far the model has moved from its base: the estimated Kullback-Leibler divergence of a token of these answers, in nats. */
  validation_kl?: number
  /** Mean length of these answers, in tokens. */ validation_answer_tokens?: number
  /** How many of these tokens are thoughts, on average. */ validation_reasoning_tokens?: number
  /** Share of these answers that were cut. */ validation_cut_share?: number
  /** Mean loss of the training rows over the epoch, up to this step. */ train_loss?: number
  created_at: Time
}
export interface JobCheckpoint {
  step: number
  /** The model id of a state that is kept; inference and deployments accept it. Other checkpoints are for resuming after an interruption. */
  model: string | null
  validation_loss: number | null
  /** Whether it is the result of the job. */ result: boolean
  created_at: Time
}
export interface JobRow {
  /** Its number among the rows of the dataset, counted from 1. */ row: number
  /** Its line in the uploaded file; of formats without lines the number of the row. Null where the dataset is gone. */
  line: number | null
  /** Mean loss of its learned tokens, or loss of its preference, when it was last trained on, before that step. */
  loss: number
  /** The same when it was first trained on. */ first_loss: number
  /** How many of its tokens are learned. */ tokens: number
  /** The messages of a pair, with the chosen answer. Null where the dataset was deleted. */ messages: unknown[] | null
  /** The rejected answer of a pair. */ rejected?: { [k: string]: unknown }
}
export interface HeldOutRow {
  /** Its number among the rows of its dataset, counted from 1. */ row: number
  /** Its line in the uploaded file; of formats without lines the number of the row. Null where the dataset is gone. */
  line: number | null
  /** The messages of a pair, with the chosen answer. Null where the dataset was deleted. */ messages: unknown[] | null
  /** The rejected answer of a pair. */ rejected?: { [k: string]: unknown }
}
export interface RolloutStep {
  step: number
  /** The answers that were learned from in this step. Null if they were not kept, or none were. */
  training: RolloutFigures | null
  /** The answers to held-out prompts after this step. Null if it was not evaluated, or they were not kept. */
  validation: RolloutFigures | null
}
export interface RolloutFigures {
  /** The mean score of all answers. */ reward: number | null
  /** All prompts that were answered. */ prompts: number
  /** All answers. */ answers: number
  /** Answers without a score, because a grader failed. */ failures: number
}
export interface StepRollouts {
  step: number
  /** The answers that were learned from in this step. Null if they were not kept, or none were. */ training: {
    /** The mean score of all answers. */ reward: number | null
    /** All prompts that were answered. */ prompts: number
    /** All answers. */ answers: number
    /** Answers without a score, because a grader failed. */ failures: number
    /** The first 4 prompts; one with an answer that could not be scored among them. */ groups: RolloutGroup[]
  } | null
  /** The answers to held-out prompts after this step. Null if it was not evaluated, or they were not kept. */
  validation: {
    /** The mean score of all answers. */ reward: number | null
    /** All prompts that were answered. */ prompts: number
    /** All answers. */ answers: number
    /** Answers without a score, because a grader failed. */ failures: number
    /** The first 4 prompts; one with an answer that could not be scored among them. */ groups: RolloutGroup[]
  } | null
}
export interface RolloutGroup {
  /** Its number among the rows of its dataset, counted from 1. */ row: number
  /** Its line in the uploaded file; of formats without lines the number of the row. Null where the dataset is gone. */
  line: number | null
  /** The messages of its row, with the answer if it has one. Null where the dataset was deleted. */
  messages: unknown[] | null
  /** The first 16 answers to the prompt. */ answers: RolloutAnswer[]
  /** All answers to the prompt. */ answer_count: number
}
export interface RolloutAnswer {
  /** Its first 2,000 characters. */ text: string
  /** Its calls of tools as JSON, the first 2,000 characters. */ tool_calls?: string
  /** What an environment made of it. `text` is the last answer. */ episode?: {
    /** How often the model answered. */ turns: number
    /** All messages behind the prompt as JSON, the first 2,000 characters. */ messages: string
  }
  /** Those that the model wrote. */ tokens: number
  /** Whether it was cut at `max_tokens`. */ cut: boolean
  /** The reward. Null if a grader failed: the answer is not learned from. */ score: number | null
  graders: {
    [k: string]: {
      /** Null if the grader failed: it is no score of 0. */ score: number | null
      label?: string
      /** Why the grader failed, or why its score is 0. */ error?: string
      /** What failed: `row` lacks a field, `runtime` the code, `timeout` its time, `unavailable` a service that it asks, `form` what that said. */
      failure?: 'row' | 'runtime' | 'timeout' | 'unavailable' | 'form'
      latency_ms?: number
    }
  }
  /** Scores of graders that are no part of the reward. */ watched_graders?: { [k: string]: number | null }
  /** Why it has no score. */ error: string | null
}
export interface AdapterFields {
  /** Default: the name of the file. */ name?: DisplayName | undefined
  description?: Description | undefined
  /** Default: what the adapter’s own adapter_config.json names. */ base_model_id?: string | undefined
}
export interface TunedModel {
  id: string
  /** At first that of its job, or of the uploaded file. */ name: string
  description: string
  metadata: Metadata
  /** An adapter on a base, or whole weights. */ kind: 'adapter' | 'model'
  base_model_id: string
  /** The model of the account that it continued, which may be deleted by now. Null where it began with the base. */
  parent_model_id: string | null
  /** The model of the account whose whole weights an adapter was trained on, if not those of the base. */
  weights_model_id: string | null
  /** Null for one that was uploaded. */ job_id: string | null
  method: Method
  size_mb: number
  /** SHA-256 of the projector that was trained with it. Null: it reads pictures as its starting model does, if at all. */
  projector_sha256: string | null
  /** Null until it has been made: at the end of the job, or when the model is first deployed. */
  comparison: Comparison | null
  created_at: Time
}
/** How training changed the probabilities of fixed rows: the engine compared with the trainer. */
export interface Comparison {
  agrees: boolean
  /** What disagrees, and what to do. */ problem: string | null
  rows: number
  /** Learned tokens that were compared. */ tokens: number
  /** By how much training changed the logarithm of a token’s probability, on average, in the trainer. */ change: number
  /** By how much the engine’s change differs from the trainer’s, on average. */ difference: number
  /** By how much the two differ on the starting model, because of their precisions. */ base_difference: number
  /** Whether the engine answered with the eight-bit form of the base. The comparison is repeated at a deployment when the base is served in another form. */
  eight_bits?: boolean
}
export interface TunedModelDetails {
  id: string
  /** At first that of its job, or of the uploaded file. */ name: string
  description: string
  metadata: Metadata
  /** An adapter on a base, or whole weights. */ kind: 'adapter' | 'model'
  base_model_id: string
  /** The model of the account that it continued, which may be deleted by now. Null where it began with the base. */
  parent_model_id: string | null
  /** The model of the account whose whole weights an adapter was trained on, if not those of the base. */
  weights_model_id: string | null
  /** Null for one that was uploaded. */ job_id: string | null
  method: Method
  size_mb: number
  /** SHA-256 of the projector that was trained with it. Null: it reads pictures as its starting model does, if at all. */
  projector_sha256: string | null
  /** Null until it has been made: at the end of the job, or when the model is first deployed. */
  comparison: Comparison | null
  created_at: Time
  lineage: Lineage
  /** Null of uploaded adapters, and of models of earlier versions. Answers to requests that differ from it carry codes in the header `x-warnings`. */
  trained_with: TrainedWith | null
}
/** What a model came from. */
export interface Lineage {
  base_model_id: string
  /** Each training or upload on the way, the first one first, this model last. */ steps: LineageStep[]
}
export interface LineageStep {
  /** What came of it. It may be deleted by now. */ model_id: string
  /** As it was when the next step began. */ name: string | null
  /** SHA-256 of the file of weights that the engine serves. */ sha256: string | null
  /** The training. Null for an adapter that was uploaded. */ job_id: string | null
  /** The step of the training whose weights these are. */ step: number | null
  method: Method | null
  /** What was learned: answers, or preferences. */ objective: ('sft' | 'dpo' | 'kto' | 'reinforcement') | null
  /** As it was when the job was created; it may be deleted by now. */ dataset: LineageDataset | null
  validation_dataset: LineageDataset | null
}
export interface LineageDataset {
  id: string
  name: string | null
  /** SHA-256 of the uploaded file. Null where the dataset was deleted by a version that did not keep it. */
  sha256: string | null
}
/** What the rows of its last training have in common. A model that is asked otherwise acts untrained. */
export interface TrainedWith {
  /** `same`: every row had the one in `system_prompt_text`. */ system_prompt: 'same' | 'none' | 'varies'
  system_prompt_text: string | null
  /** Whether the rows had tools. */ tools: 'all' | 'none' | 'some'
  /** Whether the answers had thoughts. Null: its chat template has no place for them. */
  thoughts: ('all' | 'none' | 'some') | null
  /** Whether its chat template asks for thoughts only where a request does (`enable_thinking`). If all answers had thoughts, a request that says nothing of them asks for them. */
  thoughts_asked?: boolean
  chat_template_sha256: string
}
export interface CreateShareInput {
  /** A completed evaluation of this model, whose result the page shows. */ evaluation?: string | null | undefined
  /** When the link ends to work. Default: never. */ expires_at?: Time | null | undefined
  /** Requests of all visitors together in a UTC day. */ requests_per_day?: number | undefined
  /** Most tokens of an answer. */ max_tokens?: number | undefined
}
export interface ModelsSharesCreateResponse {
  /** Usage of visitors is reported with it as `key_id`. */ id: string
  model_id: string
  evaluation: string | null
  requests_per_day: number
  max_tokens: number
  requests_today: number
  expires_at: Time | null
  created_at: Time
  /** The address of the page below that of the dashboard. */ link: string
}
export interface Share {
  /** Usage of visitors is reported with it as `key_id`. */ id: string
  model_id: string
  evaluation: string | null
  requests_per_day: number
  max_tokens: number
  requests_today: number
  expires_at: Time | null
  created_at: Time
}
export interface ModelList {
  object: 'list'
  data: ModelCard[]
}
export interface ModelCard {
  id: string
  object: 'model'
  created: number
  owned_by: string
  /** The category of its base. An `embedding` model makes embeddings and does not chat. Null: an upstream serves it, and nothing else is known. */
  category: ModelCategory | null
  /** Whether a request would wait for the model to be loaded first. */ status: 'loaded' | 'loading' | 'not_loaded'
}
export interface ShareLookBody {
  /** What the link has after `#`. */ token: string
}
export interface SharedModel {
  name: string
  description: string
  base_model_id: string
  evaluation: {
    name: string
    rows: number
    score: number | null
    pass_rate: number | null
    /** Score of the compared model; null without one. */ baseline_score: number | null
    /** Score less that of the baseline, with its 95 % confidence interval. */
    difference: { mean: number; low: number | null; high: number | null } | null
    finished_at: Time | null
  } | null
  max_tokens: number
  max_prompt_tokens: number
  /** Requests that all visitors together may still make until `resets_at`. */ requests_left: number
  resets_at: Time
}
export interface SharedChat {
  /** What the link has after `#`. */ token: string
  messages: { role: 'user' | 'assistant'; content: string }[]
  stream?: boolean | null | undefined
}
export interface ChatResponse {
  id: string
  object: 'chat.completion'
  /** Unix seconds. */ created: number
  model: string
  choices: {
    index: number
    message: AnswerMessage
    logprobs: ChatLogprobs | null
    finish_reason: 'stop' | 'length' | 'tool_calls' | 'content_filter'
  }[]
  usage: Usage
}
export interface AnswerMessage {
  role: 'assistant'
  content: string | null
  refusal: null
  /** The reasoning of a thinking model before its answer. */ reasoning_content?: string
  tool_calls?: { id: string; type: 'function'; function: { name: string; arguments: string } }[]
}
export interface ChatLogprobs {
  content: TokenLogprob[] | null
  refusal: null
}
export interface TokenLogprob {
  token: string
  logprob: number
  bytes: number[] | null
  top_logprobs: TopLogprob[]
}
export interface TopLogprob {
  token: string
  logprob: number
  bytes: number[] | null
}
export interface Usage {
  prompt_tokens: number
  completion_tokens: number
  total_tokens: number
  prompt_tokens_details?: {
    /** Tokens of the prompt that an earlier request had computed already. */ cached_tokens: number
  }
}
export interface DeploymentsCreateBody {
  model: string
  name: DeploymentName
}
export interface Deployment {
  id: string
  name: string
  model: string
  base_model_id: string
  status: 'starting' | 'ready' | 'failed' | 'stopped'
  error: { code: string; message: string } | null
  /** What it served before; a roll-back returns to it. */ former_model: string | null
  /** The model that serves next if the evaluation passes the gate. */
  pending: { model: string; evaluation: string; gate: Gate } | null
  replicas: number
  created_at: Time
  updated_at: Time
}
export interface Gate {
  /** An evaluation of the account: the new model answers its rows, and its graders score the answers. */
  evaluation: string
  /** The score that the new model must reach. */ min_score?: number
  /** Whether to refuse a model that is worse than the current one by more than chance. */
  not_worse_than_current: boolean
}
export interface DeploymentsSwitchBody {
  model: string
  /** Switch only if an evaluation of the new model, beside the current one, allows it. */ gate?: GateInput | undefined
}
export interface GateInput {
  /** An evaluation of the account: the new model answers its rows, and its graders score the answers. */
  evaluation: string
  /** The score that the new model must reach. */ min_score?: number | undefined
  /** Whether to refuse a model that is worse than the current one by more than chance. */
  not_worse_than_current?: boolean | undefined
}
export interface DeploymentQueryInput {
  /** 1 to 100. Default 20. A page of large items has fewer: about 8 MB at most. */ limit?: number | undefined
  /** The id after which the page begins. */ after?: string | undefined
  /** Those created later than this. */ created_after?: Time | undefined
  /** Those created earlier than this. */ created_before?: Time | undefined
  /** Default: newest first by created_at, asc by name. */ order?: 'asc' | 'desc' | undefined
  /** Those with this text in their name. ASCII letters match in either case. */ name?: string | undefined
  /** Default created_at. */ sort?: 'created_at' | 'name' | undefined
  /** Those with this status. */ status?: 'starting' | 'ready' | 'failed' | 'stopped' | undefined
}
export interface DeploymentChange {
  id: string
  /** `gate_refused`: the model did not serve. */
  action: 'created' | 'switched' | 'gate_passed' | 'gate_refused' | 'rolled_back'
  model: string
  former_model: string | null
  /** The evaluation that decided. */ evaluation: string | null
  reason: string | null
  created_at: Time
}
export interface PeriodQuery {
  /** Begin of the first bucket; rounded down to a whole step. By default 24 hours ago. */ from?: Time | undefined
  /** By default now. */ to?: Time | undefined
  /** Length of a bucket, in UTC. By default a minute up to 3 hours, an hour up to 7 days, else a day. Minutes go back 7 days. */
  step?: 'minute' | 'hour' | 'day' | undefined
}
export interface ScalingRequestInput {
  /** The name of the deployment, or the model that it serves. */ model?: string | undefined
  scaling: ScalingPolicyInput
  /** What a replica runs on: `cpu`, the class of a GPU of this machine, `ray`, cores of the Ray cluster, or `ray:KIND`, vLLM on a GPU of that cluster, such as `ray:H100`. Default: a GPU of this machine if there is one. */
  instance_type?: string | undefined
}
export interface ScalingPolicyInput {
  /** 0: none while nobody asks. The first request then waits for a start. */ min_replicas?: number | undefined
  /** More than this machine has room for are not placed. */ max_replicas: number
  /** Requests in progress or waiting that a replica should have. */ target_requests_per_replica?: number | undefined
  /** Percent of the time that a GPU, or the cores of a replica, should compute. The larger demand wins. Null: only requests count. */
  target_gpu_utilization?: number | null | undefined
  /** Least time from one scale-up to the next. */ scale_up_cooldown?: Duration | undefined
  /** Least time from any change to a scale-down. */ scale_down_cooldown?: Duration | undefined
}
export interface Scaling {
  /** The name of the deployment. */ model: string
  /** Null: it does not scale; the engine of the machine serves it with everything else. */ scaling: {
    min_replicas: number
    max_replicas: number
    target_requests_per_replica: number
    target_gpu_utilization: number | null
    scale_up_cooldown: string
    scale_down_cooldown: string
  } | null
  instance_type: string | null
  replicas: { desired: number; ready: number; starting: number; draining: number; items: Replica[] }
  in_flight: number
  /** Requests that wait for a replica. */ waiting: number
  /** Share of the time that the ready replicas compute, 0 to 1. */ utilization: number | null
  /** Why there are as many as desired, now. */ reason: string | null
  /** Why there are fewer than desired, or can be no more. */ limit: string | null
  /** Why the last replica did not start. */ error: string | null
  /** The last 100 changes, newest first. */ decisions: ScalingDecision[]
  /** The classes of this machine, and how many replicas each has room for. Of `ray` and `ray:KIND`: how many a deployment may have. */
  instance_types: { name: string; places: number; free: number }[]
}
export interface Replica {
  id: string
  /** `starting`: it loads and is verified. `draining`: it ends its requests and takes no more. */
  state: 'starting' | 'ready' | 'draining'
  /** Such as `cores 0-3`, `GPU 0`, or the address of a machine of the Ray cluster. */ place: string
  started_at: Time
  ready_at: Time | null
  in_flight: number
}
export interface ScalingDecision {
  at: Time
  from: number
  to: number
  reason: string
  in_flight: number
  waiting: number
  /** The server process that decided, for its own replicas. */ server: string
}
export interface RunGraderInput {
  grader: GraderInput
  /** The answer: `{{sample.output_text}}`, and its JSON. */ model_sample: string
  /** The row: `{{item.…}}`. */ item?: { [k: string]: unknown } | null | undefined
  [k: string]: unknown
}
export interface GraderRun {
  /** The score. Null if the grader failed: it is no score of 0. */ reward: number | null
  /** Scores of the parts of `multi`. */ sub_rewards: { [k: string]: number | null }
  metadata: {
    name: string
    type: string
    errors: {
      formula_parse_error: boolean
      /** The row lacks a field. */ invalid_variable_error: boolean
      model_grader_parse_error: boolean
      model_grader_refusal_error: boolean
      model_grader_server_error: boolean
      model_grader_server_error_details: string | null
      other_error: boolean
      python_grader_runtime_error: boolean
      /** Python’s message and line. */ python_grader_runtime_error_details: string | null
      python_grader_server_error: boolean
      python_grader_server_error_type: string | null
      /** The answer lacks what the grader reads. */ sample_parse_error: boolean
      truncated_observation_error: boolean
      unresponsive_reward_error: boolean
      /** Which error it was, of any grader. */ details: string | null
    }
    /** In seconds. */ execution_time: number
    scores: { [k: string]: number | null }
    /** Tokens that judges used. */ token_usage: number | null
    /** The judge. */ sampled_model_name: string | null
  }
  model_grader_token_usage_per_model: {
    [k: string]: { prompt_tokens: number; completion_tokens: number; total_tokens: number }
  }
}
export interface GradersValidateBody {
  grader: GraderInput
  [k: string]: unknown
}
export interface GradersValidateResponse {
  grader: { [k: string]: unknown }
}
export interface GradersSecretResponse {
  name: string
  /** `whsec_…`, as of Standard Webhooks. */ secret: string
}
export interface CreateEvaluationInput {
  /** What is evaluated: a model, or the name of a deployment. */ model: string
  /** A model that answers the same rows, to compare with. */ baseline?: string | undefined
  /** The rows: a dataset of the account, or a file with the purpose `evals`. */ dataset: string
  /** How an answer is scored. With several the score of a row is their mean. At most 50 with the parts of `multi`. */
  graders: GradersInput
  /** When grading ends early. */ grading?: GradingLimitsInput | undefined
  /** The messages of each request, with `{{item.…}}` for fields of the row, or the field that has them. Default: the messages of the row before its answer. */
  template?: EvaluationTemplate | undefined
  /** A job that was trained on this dataset: only the rows that it held out are evaluated, which its model has not learned from. */
  held_out_by?: string | undefined
  /** How many rows, drawn at random but always the same ones. Default: all, up to 10000. */ rows?: number | undefined
  /** How the answers are made. */ sampling?: {
    /** Temperature of the answers. */ temperature?: number | undefined
    /** Length of an answer, in tokens. */ max_tokens?: number | undefined
    /** Seed of the answers. */ seed?: Seed | undefined
    top_p?: number | undefined
    /** How much to think, as in chat completions. */ reasoning_effort?: ReasoningEffort | undefined
    chat_template_kwargs?: ChatTemplateKwargs | undefined
    /** The form of the answers, as in chat completions. */ response_format?: ResponseFormat | undefined
    /** Tools of the requests whose row has none of its own. */ tools?: Tool[] | undefined
  } | undefined
  /** Default: the names of the model and the dataset. */ name?: DisplayName | undefined
  /** What you want to remember of it. */ description?: Description | undefined
  /** Up to 16 pairs of your own. */ metadata?: Metadata | undefined
}
/** Further variables of the model’s chat template, such as enable_thinking. Names that other templates have for the same are translated. */
export interface ChatTemplateKwargs {
  [k: string]: unknown
}
export interface TextResponseFormat {
  type: 'text'
  [k: string]: unknown
}
export interface JsonResponseFormat {
  type: 'json_object'
  [k: string]: unknown
}
export interface JsonSchemaResponseFormat {
  type: 'json_schema'
  json_schema: {
    name: string
    description?: string | null | undefined
    schema?: { [k: string]: unknown } | null | undefined
    strict?: boolean | null | undefined
    [k: string]: unknown
  }
  [k: string]: unknown
}
export interface Tool {
  type: 'function'
  function: {
    name: string
    description?: string | null | undefined
    /** JSON schema of the arguments; enforced while they are written. */
    parameters?: { [k: string]: unknown } | null | undefined
    /** Refuses a schema that cannot be enforced, instead of taking any JSON object. */
    strict?: boolean | null | undefined
    [k: string]: unknown
  }
  [k: string]: unknown
}
export interface Evaluation {
  id: string
  name: string
  description: string
  metadata: Metadata
  status: 'queued' | 'running' | 'completed' | 'failed' | 'cancelled'
  error: { code: string; message: string } | null
  /** Null if the rows bring their answers. */ model: string | null
  baseline: string | null
  dataset: string
  /** The eval of OpenAI’s API that it is a run of. */ eval: string | null
  graders: { [k: string]: unknown }[]
  grading: GradingLimits
  template: EvaluationTemplate | null
  sampling: {
    /** Temperature of the answers. */ temperature: number
    /** Length of an answer, in tokens. */ max_tokens: number
    /** Seed of the answers. */ seed: Seed
    top_p?: number
    /** How much to think, as in chat completions. */ reasoning_effort?: ReasoningEffort
    chat_template_kwargs?: ChatTemplateKwargs
    /** The form of the answers, as in chat completions. */ response_format?: ResponseFormat
    tools?: Tool[]
  }
  /** The job whose held-out rows these are. */ held_out_by: string | null
  /** How many rows are evaluated. */ rows: number
  /** How many of these rows the model was trained on, by its lineage: it has seen their answers, so its score on them says little about new rows. Null if that is not known. */
  trained_rows: number | null
  /** Answers that are scored, of both models. */ done: number
  /** Figures of the rows that have been scored so far. */ result: {
    model: EvaluationSide
    baseline: EvaluationSide | null
    /** Score of the model less that of the baseline, row by row. */ difference: {
      mean: number
      /** Lower end of the 95 % confidence interval. Null for fewer than two rows. */ low: number | null
      high: number | null
      /** The test behind the interval. */ test: string
      /** Rows on which the model scores higher than the baseline. */ better: number
      worse: number
      equal: number
    } | null
  } | null
  created_at: Time
  started_at: Time | null
  finished_at: Time | null
}
export interface EvaluationSide {
  /** Null if the rows bring their answers. */ model: string | null
  /** Null until a row is scored. */ score: {
    mean: number
    /** Lower end of the 95 % confidence interval. Null for fewer than two rows. */ low: number | null
    high: number | null
  } | null
  /** Share of the rows that pass every grader. */ pass_rate: number | null
  /** Rows that are answered and scored. */ rows: number
  /** Rows that pass every grader. */ passed: number
  /** Mean score of each grader. */ graders: { [k: string]: number }
  /** Rows that pass each grader. */ passed_by_grader: { [k: string]: number }
  /** Rows without an answer, which count as 0, and rows without a score. */ errors: number
  /** Rows without a score, because a grader failed. They count in no mean. */ ungraded?: number
  /** Errors and latency of each grader. */ grader_figures?: { [k: string]: GraderFigures }
  /** What the models that judge took. */ judges?: {
    prompt_tokens: number
    completion_tokens: number
    /** By the prices when they were asked, in the currency of the service. */ cost: number
    requests: number
  }
  latency_ms: { p50: number; p95: number } | null
  prompt_tokens: number
  /** The cached part of the prompt tokens. */ cached_tokens: number
  completion_tokens: number
}
export interface GraderFigures {
  answers: number
  /** Answers that it could not score. They count in no mean. */ errors: number
  /** Mean of its scores. */ score: number | null
  latency_ms: { mean: number; p95: number } | null
  last_error: string | null
}
export interface EvaluationRow {
  /** Its number in the dataset, counted from 1. */ row: number
  item: { [k: string]: unknown }
  model: EvaluationAnswer | null
  baseline: EvaluationAnswer | null
  /** Score of the model less that of the baseline. */ difference: number | null
}
export interface EvaluationAnswer {
  output: string | null
  tool_calls?: unknown[]
  /** Null if a grader failed. */ score: number | null
  passed: boolean
  graders: { [k: string]: GraderResult }
  error: { code: string; message: string } | null
  /** `length`: the answer was cut at `max_tokens`. */ finish_reason: string | null
  latency_ms: number | null
}
export interface GraderResult {
  /** Null if the grader failed: it is no score of 0. */ score: number | null
  passed: boolean
  label?: string
  /** Why the grader failed, or why its score is 0. */ error?: string
  /** What failed: `row` lacks a field, `runtime` the code, `timeout` its time, `unavailable` a service that it asks, `form` what that said. */
  failure?: 'row' | 'runtime' | 'timeout' | 'unavailable' | 'form'
  latency_ms?: number
  /** Scores of the parts of `multi`. */ parts?: { [k: string]: number | null }
  judge?: JudgeUsage
}
export interface JudgeUsage {
  prompt_tokens: number
  completion_tokens: number
  /** By the prices when they were asked, in the currency of the service. */ cost: number
}
export interface CreateExportInput {
  /** A model of the account, or the name of a deployment that serves one. */ model: string
  format: 'huggingface' | 'gguf' | 'onnx'
  /** For gguf one of F32, F16, BF16, Q8_0, Q6_K, Q5_K_M, Q5_K_S, Q5_1, Q5_0, Q4_K_M, Q4_K_S, Q4_1, Q4_0, IQ4_NL, IQ4_XS, Q3_K_L, Q3_K_M, Q3_K_S, IQ3_M, IQ3_S, Q2_K, IQ3_XS, IQ3_XXS, Q2_K_S, IQ2_M, IQ2_S, IQ2_XS, IQ2_XXS, IQ1_M, IQ1_S, TQ2_0, TQ1_0, Q2_0, Q1_0, MXFP4_MOE (default Q8_0; of an adapter alone F32, F16, BF16 or Q8_0, default F16); for onnx one of fp32, fp16, int8, int4 (default fp32). */
  quantization?: string | undefined
  /** For huggingface and gguf: false exports the adapter alone, without its base. */ merge?: boolean | undefined
  /** For huggingface and onnx, which are folders. Default tar. */ archive?: 'tar' | 'zip' | undefined
  /** A repository of the Hugging Face Hub that gets the files too; the service must have a token. */
  push_to?: string | undefined
}
export interface Export {
  id: string
  status: 'queued' | 'running' | 'ready' | 'failed' | 'expired'
  /** The model, by its id. */ model: string
  format: 'huggingface' | 'gguf' | 'onnx'
  quantization: string | null
  merge: boolean
  archive: ('tar' | 'zip') | null
  stage: ('reference' | 'merge' | 'convert' | 'quantize' | 'check' | 'pack' | 'push') | null
  /** 0 to 1. */ progress: number
  /** Once ready; the first is the exported model. */ files: ExportFile[]
  size_bytes: number | null
  check: ExportCheck | null
  push: { repository: string; url: string | null; error: string | null } | null
  error: { code: string; message: string } | null
  created_at: Time
  started_at: Time | null
  finished_at: Time | null
  /** When its files are removed; null if it is not ready, or stays until it is deleted. */ expires_at: Time | null
}
export interface ExportFile {
  name: string
  size_bytes: number
  sha256: string
}
/** Compares the answers of the exported file, in its own runtime, with those of the trainer. */
export interface ExportCheck {
  agrees: boolean
  /** What disagrees, where that is beyond the bounds. */ problem: string | null
  /** The runtime that computed the answers of the exported file. */ runtime: string
  prompts: number
  /** Tokens of the trainer’s answers, which the exported file’s are compared with. */ tokens: number
  /** Share of the answers that are the same to the end. */ identical: number
  /** Share of the tokens that are the same before the answers differ. What follows a tie does not count: a token that the trainer finds hardly likelier than another. */
  matching_tokens: number
  /** How far the logarithms of the tokens’ probabilities are apart, on average, in nats. */
  log_probability_difference: number
}
export interface ExportQueryInput {
  /** 1 to 100. Default 20. A page of large items has fewer: about 8 MB at most. */ limit?: number | undefined
  /** The id after which the page begins. */ after?: string | undefined
  /** Those created later than this. */ created_after?: Time | undefined
  /** Those created earlier than this. */ created_before?: Time | undefined
  /** Default: newest first. */ order?: 'asc' | 'desc' | undefined
  /** Those with this status. */ status?: 'queued' | 'running' | 'ready' | 'failed' | 'expired' | undefined
  /** Those of the model with this id. */ model?: string | undefined
}
export interface ExportsEventsQuery {
  /** Continue after this `seq`. Default 0. */ after?: number | undefined
}
export interface ExportEvent {
  type: 'status' | 'progress' | 'log' | 'warning' | 'error'
  message: string
  seq: number
  created_at: Time
  data?: { [k: string]: unknown }
}
export interface ExportsDownloadQuery {
  /** The name of the file. Default: the first. */ file?: string | undefined
}
export interface WebhooksCreateBody {
  /** http or https, on any port; addresses that are not of the public internet are refused. */ url: string
  events: EventName[]
  format?: WebhookFormat | undefined
  /** Printable ASCII. After the prefix `whsec_` it must be base64. Generated if left out, and then shown only in this response. */
  secret?: string | undefined
}
export interface NewWebhook {
  id: string
  url: string
  format: WebhookFormat
  events: EventName[]
  status: 'active' | 'disabled'
  disabled_at: Time | null
  /** `requested` by a change, `gone` after an answer of 410, `failing` after three days without a success. */
  disabled_reason: ('requested' | 'gone' | 'failing') | null
  /** Since when every try has failed; null if the last one succeeded. */ failing_since: Time | null
  /** Until when the secret before the last rotation is also valid. */ previous_secret_expires_at: Time | null
  created_at: Time
  updated_at: Time
  /** The secret that was made; it is shown this once and cannot be read again. */ secret?: string
}
export interface Webhook {
  id: string
  url: string
  format: WebhookFormat
  events: EventName[]
  status: 'active' | 'disabled'
  disabled_at: Time | null
  /** `requested` by a change, `gone` after an answer of 410, `failing` after three days without a success. */
  disabled_reason: ('requested' | 'gone' | 'failing') | null
  /** Since when every try has failed; null if the last one succeeded. */ failing_since: Time | null
  /** Until when the secret before the last rotation is also valid. */ previous_secret_expires_at: Time | null
  created_at: Time
  updated_at: Time
}
export interface WebhooksUpdateBody {
  /** http or https, on any port; addresses that are not of the public internet are refused. */ url?: string | undefined
  events?: EventName[] | undefined
  disabled?: boolean | undefined
}
export interface Delivery {
  id: string
  webhook_id: string
  /** The `id` of the payload and the header `webhook-id`: the same at every try. */ event_id: string
  type: string
  /** `blocked_address`: the name led to an address that webhooks may not reach; it is not tried again. */
  status: 'pending' | 'delivered' | 'failed' | 'blocked_address'
  created_at: Time
  /** Time of the next try, as planned before the webhook was slowed or disabled. */ next_attempt_at: Time | null
  attempt_count: number
  last_attempt: DeliveryAttempt | null
}
export interface DeliveryAttempt {
  number: number
  started_at: Time
  duration_ms: number
  response_status: number | null
  /** The first kB of the answer. */ response_body: string | null
  error: {
    code: 'blocked_address' | 'dns_failed' | 'tls_failed' | 'connection_failed' | 'timeout' | 'http_error'
    message: string
  } | null
}
export interface DeliveryDetails {
  id: string
  webhook_id: string
  /** The `id` of the payload and the header `webhook-id`: the same at every try. */ event_id: string
  type: string
  /** `blocked_address`: the name led to an address that webhooks may not reach; it is not tried again. */
  status: 'pending' | 'delivered' | 'failed' | 'blocked_address'
  created_at: Time
  /** Time of the next try, as planned before the webhook was slowed or disabled. */ next_attempt_at: Time | null
  attempt_count: number
  last_attempt: DeliveryAttempt | null
  /** The body that is sent. */ payload: string
  /** Oldest first. */ attempts: DeliveryAttempt[]
}
export interface ChatRequest {
  /** A base model of the hub that is on this machine, a deployment, or a finished job’s model. */ model: string
  messages: Messages
  /** 0 to 2; 0 always takes the likeliest token. Default 0.7. */ temperature?: number | null | undefined
  /** 0 to 1. Default 0.9. */ top_p?: number | null | undefined
  /** 1 to 100. Default 50. */ top_k?: number | null | undefined
  /** Tokens less likely than this share of the likeliest are excluded. Default 0. */ min_p?: number | null | undefined
  /** 1 to 4096. Default 1024, or what the context leaves. */ max_tokens?: number | null | undefined
  /** One sequence or up to four; generation ends before the first that appears. */
  stop?: (string | string[]) | null | undefined
  /** The same seed, prompt and settings give the same answer on the same machine. */ seed?: Seed | null | undefined
  /** How many answers. Default 1. */ n?: number | null | undefined
  /** Subtracted once from the logit of every token that is already in the answer. Default 0. */
  presence_penalty?: number | null | undefined
  /** Subtracted from the logit of a token once for each time it is in the answer. Default 0. */
  frequency_penalty?: number | null | undefined
  /** Divides (or, below zero, multiplies) the logits of tokens that prompt or answer have. Default 1. */
  repetition_penalty?: number | null | undefined
  /** Added to the logits of the tokens with these numbers; −100 forbids one, 100 all but forces it. */
  logit_bias?: { [k: string]: number } | null | undefined
  /** OpenAI's newer name of max_tokens; wins where both are given. */ max_completion_tokens?: number | null | undefined
  /** Whether to return the log-probability of each token of the answer. */ logprobs?: boolean | null | undefined
  /** How many of the likeliest tokens to return for each position. Needs logprobs. */
  top_logprobs?: number | null | undefined
  response_format?: ResponseFormat | null | undefined
  tools?: Tool[] | null | undefined
  /** Default: auto where there are tools. */ tool_choice?: ToolChoice | null | undefined
  /** Whether one answer may hold several calls. Default true. */ parallel_tool_calls?: boolean | null | undefined
  /** How much to think: the nearest effort that the model’s chat template knows. none turns thoughts off where that is possible. Default: the template’s own. Without effect on models that do not think. */
  reasoning_effort?: ReasoningEffort | null | undefined
  chat_template_kwargs?: ChatTemplateKwargs | null | undefined
  /** Not supported. Send them as tools. */ functions?: unknown[] | null | undefined
  /** Not supported. Send tool_choice. */ function_call?: 'none' | 'auto' | null | undefined
  /** Not supported. Leave it out. */ audio?: null | undefined
  /** Not supported. Leave it out. */ modalities?: 'text'[] | null | undefined
  /** Not supported. Leave it out. */ web_search_options?: null | undefined
  /** Server-Sent Events, ended by `data: [DONE]`. */ stream?: boolean | null | undefined
  stream_options?: StreamOptions | null | undefined
  [k: string]: unknown
}
export interface ToolCall {
  id: string
  type: 'function'
  function: {
    name: string
    /** JSON, as the model wrote it. */ arguments: string
    [k: string]: unknown
  }
  [k: string]: unknown
}
export interface StreamOptions {
  include_usage?: boolean | null | undefined
  [k: string]: unknown
}
export interface BatchRequest {
  /** A request may name another one. */ model: string
  /** Each with `messages`, and the fields that differ for it. An invalid one gets its error as the response; the others are not affected. */
  requests: { [k: string]: unknown }[]
  /** Not supported. Leave it out: a batch is answered whole. */ stream?: false | null | undefined
  [k: string]: unknown
}
export interface BatchResponse {
  object: 'chat.completion.batch'
  /** In the order of the requests: an answer, or its own error. */ responses: (ChatResponse | ErrorBody)[]
  /** Usage of all answers together. */ usage: Usage
}
export interface ErrorBody {
  error: {
    code:
      | 'invalid_request' | 'invalid_json' | 'unknown_field' | 'not_multipart' | 'file_missing' | 'file_empty'
      | 'file_not_utf8' | 'file_not_readable' | 'parameter_not_supported' | 'dataset_invalid' | 'dataset_not_ready'
      | 'model_not_available' | 'model_not_callable' | 'model_disagrees' | 'adapter_invalid' | 'context_length_exceeded'
      | 'schema_not_enforceable' | 'link_invalid' | 'password_refused' | 'passkey_refused' | 'job_not_cancellable'
      | 'job_not_pausable' | 'job_not_resumable' | 'job_not_completed' | 'export_not_ready' | 'upload_not_pending'
      | 'upload_incomplete' | 'batch_not_cancellable' | 'gate_pending' | 'evaluation_not_found'
      | 'evaluation_not_cancellable' | 'evaluation_invalid' | 'graders_failed' | 'judge_budget_spent'
      | 'previous_response_not_found' | 'name_taken' | 'in_use' | 'address_blocked' | 'too_many'
      | 'idempotency_key_reused' | 'invalid_api_key' | 'sign_in_failed' | 'session_ended' | 'csrf_failed'
      | 'session_required' | 'insufficient_permissions' | 'account_suspended' | 'storage_quota_exceeded' | 'not_found'
      | 'model_not_found' | 'dataset_not_found' | 'file_not_found' | 'upload_not_found' | 'batch_not_found'
      | 'response_not_found' | 'completion_not_found' | 'job_not_found' | 'deployment_not_found' | 'export_not_found'
      | 'key_not_found' | 'member_not_found' | 'session_not_found' | 'passkey_not_found' | 'identity_not_found'
      | 'invitation_not_found' | 'account_not_found' | 'webhook_not_found' | 'delivery_not_found' | 'method_not_allowed'
      | 'body_too_large' | 'file_too_large' | 'unsupported_media_type' | 'range_not_satisfiable' | 'rate_limit_exceeded'
      | 'internal_error' | 'engine_failed' | 'stored_object_damaged' | 'upstream_failed' | 'upstream_timeout'
      | 'engine_unavailable' | 'overloaded' | 'storage_full' | 'storage_unavailable' | 'training_not_ready'
      | 'shutting_down'
    message: string
    details?: { [k: string]: unknown }
    type?: string
    param?: string | null
  }
}
export interface StoredQueryInput {
  /** 1 to 100. Default 20. A page of large items has fewer: about 8 MB at most. */ limit?: number | undefined
  /** The id after which the page begins. */ after?: string | undefined
  /** `null`: those without metadata. Pairs are written as `metadata[key]=value`. */ metadata?: '' | 'null' | undefined
  /** By time of creation. Default asc. */ order?: 'asc' | 'desc' | undefined
  /** Those that were asked of this name. */ model?: string | undefined
  [k: string]: unknown
}
/** The answer, beside the parameters that it was asked with. */
export interface StoredCompletion {
  id: string
  object: 'chat.completion'
  /** Unix seconds. */ created: number
  model: string
  choices: {
    index: number
    message: AnswerMessage
    logprobs: ChatLogprobs | null
    finish_reason: 'stop' | 'length' | 'tool_calls' | 'content_filter'
  }[]
  usage: Usage
  metadata: Metadata
  /** Unix seconds: when it is deleted. */ expires_at: number
  [k: string]: unknown
}
export interface ChatCompletionsMessagesQuery {
  /** 1 to 100. Default 20. A page of large items has fewer: about 8 MB at most. */ limit?: number | undefined
  /** The id after which the page begins. */ after?: string | undefined
  /** Order of messages. Default asc. */ order?: 'asc' | 'desc' | undefined
  [k: string]: unknown
}
export interface StoredMessage {
  id: string
  role: string
  content: string | null
  /** The content, where it was a list of parts. */ content_parts: { [k: string]: unknown }[] | null
  [k: string]: unknown
}
export interface ChatCompletionsUpdateBody {
  /** All pairs: they replace those before. */ metadata: Metadata | null
  [k: string]: unknown
}
export interface ChatCompletionsDeleteResponse {
  id: string
  object: 'chat.completion.deleted'
  deleted: true
}
export interface ChatCompletionsDeleteManyBody {
  /** Which ones. `{}`: all. */ filter: StoredFilter
}
export interface ChatCompletionsDeleteManyResponse {
  deleted: number
}
export interface CompletionRequest {
  model: string
  /** A string or its tokens, or up to 64 of either. */ prompt: string | number[] | string[] | number[][]
  /** 0 to 2; 0 always takes the likeliest token. Default 0.7. */ temperature?: number | null | undefined
  /** 0 to 1. Default 0.9. */ top_p?: number | null | undefined
  /** 1 to 100. Default 50. */ top_k?: number | null | undefined
  /** Tokens less likely than this share of the likeliest are excluded. Default 0. */ min_p?: number | null | undefined
  /** 1 to 4096; 0 only with echo. Default 1024, or what the context leaves. */ max_tokens?: number | null | undefined
  /** One sequence or up to four; generation ends before the first that appears. */
  stop?: (string | string[]) | null | undefined
  /** The same seed, prompt and settings give the same answer on the same machine. */ seed?: Seed | null | undefined
  /** How many answers. Default 1. */ n?: number | null | undefined
  /** Subtracted once from the logit of every token that is already in the answer. Default 0. */
  presence_penalty?: number | null | undefined
  /** Subtracted from the logit of a token once for each time it is in the answer. Default 0. */
  frequency_penalty?: number | null | undefined
  /** Divides (or, below zero, multiplies) the logits of tokens that prompt or answer have. Default 1. */
  repetition_penalty?: number | null | undefined
  /** Added to the logits of the tokens with these numbers; −100 forbids one, 100 all but forces it. */
  logit_bias?: { [k: string]: number } | null | undefined
  /** Whether control tokens that are written in the prompt, such as <|im_end|>, are parsed as such. Default true, and false with a `suffix`; false treats the prompt as plain text. */
  parse_special?: boolean | null | undefined
  /** Whether to put the prompt before the answer, with its log-probabilities if these are requested. */
  echo?: boolean | null | undefined
  /** Return the log-probability of each token and of this many of the likeliest tokens at each position. */
  logprobs?: number | null | undefined
  /** Not supported. Use n. */ best_of?: 1 | null | undefined
  /** Text that follows the answer, which fills in what is between prompt and suffix. Only a model whose tokenizer has tokens for this takes one, such as a code model. Not with `echo`. */
  suffix?: string | null | undefined
  stream?: boolean | null | undefined
  stream_options?: StreamOptions | null | undefined
  [k: string]: unknown
}
export interface CompletionResponse {
  id: string
  object: 'text_completion'
  created: number
  model: string
  choices: {
    index: number
    text: string
    logprobs: CompletionLogprobs | null
    finish_reason: ('stop' | 'length' | 'tool_calls' | 'content_filter') | null
  }[]
  usage?: Usage | null
}
export interface CompletionLogprobs {
  tokens: string[]
  token_logprobs: (number | null)[]
  top_logprobs: ({ [k: string]: number } | null)[] | null
  text_offset: number[]
}
export interface EmbeddingsRequest {
  /** A model of the hub that makes embeddings. */ model: string
  /** A string or its tokens, or up to 2048 of either. */ input: string | number[] | string[] | number[][]
  /** base64 is of 32-bit floats, little-endian. Default float. */
  encoding_format?: ('float' | 'base64') | null | undefined
  /** Shorter vectors, where the model was trained for it. */ dimensions?: number | null | undefined
  [k: string]: unknown
}
export interface EmbeddingsResponse {
  object: 'list'
  data: { object: 'embedding'; index: number; embedding: number[] | string }[]
  model: string
  usage: { prompt_tokens: number; total_tokens: number }
}
export interface ResponseRequest {
  model: string
  /** A text, or a list of items. */ input: string | InputItem[]
  /** A system message of this answer only. */ instructions?: string | null | undefined
  /** The stored response whose conversation this continues. */ previous_response_id?: string | null | undefined
  /** Whether to keep the response for 30 days. Default true. */ store?: boolean | null | undefined
  stream?: boolean | null | undefined
  stream_options?: { [k: string]: unknown } | null | undefined
  temperature?: number | null | undefined
  top_p?: number | null | undefined
  presence_penalty?: number | null | undefined
  frequency_penalty?: number | null | undefined
  /** 1 to 4096. Default 1024, or what the context leaves. */ max_output_tokens?: number | null | undefined
  tools?:
    | (
        | {
            type: 'function'
            name: string
            description?: string | null | undefined
            parameters?: { [k: string]: unknown } | null | undefined
            strict?: boolean | null | undefined
            [k: string]: unknown
          }
        | {
            type: 'custom'
            name: string
            description?: string | null | undefined
            /** A regex is enforced where it can be; a lark grammar is shown to the model. */
            format?:
              | (
                  | { type: 'text'; [k: string]: unknown }
                  | { type: 'grammar'; syntax: 'lark' | 'regex'; definition: string; [k: string]: unknown }
                )
              | null | undefined
            [k: string]: unknown
          }
        | {
            type: 'namespace'
            name: string
            description?: string | null | undefined
            tools: (
              | {
                  type: 'function'
                  name: string
                  description?: string | null | undefined
                  parameters?: { [k: string]: unknown } | null | undefined
                  strict?: boolean | null | undefined
                  [k: string]: unknown
                }
              | {
                  type: 'custom'
                  name: string
                  description?: string | null | undefined
                  /** A regex is enforced where it can be; a lark grammar is shown to the model. */
                  format?:
                    | (
                        | { type: 'text'; [k: string]: unknown }
                        | { type: 'grammar'; syntax: 'lark' | 'regex'; definition: string; [k: string]: unknown }
                      )
                    | null | undefined
                  [k: string]: unknown
                }
            )[]
            [k: string]: unknown
          }
        | { type: string; [k: string]: unknown }
      )[]
    | null | undefined
  tool_choice?:
    | (
        | ('none' | 'auto' | 'required')
        | { type: 'function' | 'custom'; name: string; [k: string]: unknown }
        | {
            type: 'allowed_tools'
            mode: 'auto' | 'required'
            /** Those of the tools that may be called. */
            tools: { type: string; name?: string | null; [k: string]: unknown }[]
            [k: string]: unknown
          }
      )
    | null | undefined
  parallel_tool_calls?: boolean | null | undefined
  text?: {
    format?: TextFormat | null | undefined
    /** Not supported. Leave it out. */ verbosity?: 'medium' | null | undefined
    [k: string]: unknown
  } | null | undefined
  metadata?: Metadata | null | undefined
  /** How much to think, as `reasoning_effort` of chat completions. */
  reasoning?: { effort?: ReasoningEffort | null; [k: string]: unknown } | null | undefined
  user?: string | null | undefined
  safety_identifier?: string | null | undefined
  prompt_cache_key?: string | null | undefined
  /** Not supported. Leave it out, or use POST /v1/batches. */ background?: false | null | undefined
  /** Not supported. Send previous_response_id. */ conversation?: null | undefined
  /** Not supported. Send the text as instructions or input. */ prompt?: null | undefined
  /** Not supported. Leave it out. */ truncation?: 'disabled' | null | undefined
  /** Not supported. Leave it out. */ service_tier?: 'auto' | 'default' | null | undefined
  /** Not supported. Leave it out. */ include?: 'reasoning.encrypted_content'[] | null | undefined
  /** Not supported. Leave it out. */ top_logprobs?: 0 | null | undefined
  /** Not supported. It limits hosted tools, which are not offered here. */ max_tool_calls?: null | undefined
  /** Not supported. Shorten the input in your program. */ context_management?: null | undefined
  /** Not supported. Leave it out. */ moderation?: null | undefined
  /** Not supported. Send them as input. */ messages?: null | undefined
  /** Not supported. Send max_output_tokens. */ max_tokens?: null | undefined
  /** Not supported. Send max_output_tokens. */ max_completion_tokens?: null | undefined
  /** Not supported. Send text.format. */ response_format?: null | undefined
  /** Not supported. Send tools. */ functions?: null | undefined
  /** Not supported. Leave it out. */ n?: 1 | null | undefined
  /** Not supported. Use POST /v1/chat/completions, which has it. */ stop?: null | undefined
  [k: string]: unknown
}
export interface ResponseObject {
  id: string
  object: 'response'
  created_at: number
  completed_at: number | null
  status: 'in_progress' | 'completed' | 'incomplete' | 'failed'
  error: { code: string; message: string } | null
  incomplete_details: { reason: 'max_output_tokens' } | null
  instructions: string | null
  model: string
  output: ResponsesOutputItem[]
  previous_response_id: string | null
  parallel_tool_calls: boolean
  temperature: number
  top_p: number
  presence_penalty: number
  frequency_penalty: number
  top_logprobs: 0
  max_output_tokens: number | null
  max_tool_calls: null
  tool_choice: ('none' | 'auto' | 'required') | { [k: string]: unknown }
  tools: { [k: string]: unknown }[]
  /** Tools of the request that the model was not shown, and why. */ ignored_tools: { type: string; reason: string }[]
  text: { format: { [k: string]: unknown }; [k: string]: unknown }
  reasoning: { effort: ReasoningEffort | null; summary: null }
  truncation: 'disabled'
  service_tier: 'default'
  background: false
  store: boolean
  user: string | null
  safety_identifier: string | null
  prompt_cache_key: string | null
  metadata: Metadata
  usage: {
    input_tokens: number
    input_tokens_details: { cached_tokens: number }
    output_tokens: number
    output_tokens_details: { reasoning_tokens: number }
    total_tokens: number
  } | null
}
export interface ResponsesGetQuery {
  stream?: 'false' | undefined
  [k: string]: unknown
}
export interface ResponsesInputItemsQuery {
  limit?: number | undefined
  /** The id after which the page begins. */ after?: string | undefined
  order?: 'asc' | 'desc' | undefined
  [k: string]: unknown
}
export interface ResponsesInputItemsResponse {
  object: 'list'
  data: { id: string; [k: string]: unknown }[]
  first_id: string | null
  last_id: string | null
  has_more: boolean
}
export interface ResponsesDeleteResponse {
  id: string
  object: 'response'
  deleted: true
}
export interface CreateBatch {
  /** A file with the purpose `batch`. */ input_file_id: string
  endpoint: '/v1/chat/completions' | '/v1/completions' | '/v1/embeddings'
  /** What is not answered by then ends as `expired`. */ completion_window: '24h'
  metadata?: Metadata | null | undefined
  /** After how long the result files are deleted. Without it they are kept until you delete them. */
  output_expires_after?: { anchor: 'created_at'; seconds: number } | null | undefined
  [k: string]: unknown
}
export interface Batch {
  id: string
  object: 'batch'
  endpoint: '/v1/chat/completions' | '/v1/completions' | '/v1/embeddings'
  /** The model of all requests. Missing if they name several. */ model?: string
  /** Why a batch with the status `failed` was not begun. */ errors: { object: 'list'; data: BatchError[] } | null
  input_file_id: string
  completion_window: '24h'
  status: 'validating' | 'failed' | 'in_progress' | 'finalizing' | 'completed' | 'expired' | 'cancelling' | 'cancelled'
  /** Answers, one a line, in the order in which they were made. */ output_file_id: string | null
  /** Requests without an answer, each with its error. */ error_file_id: string | null
  created_at: number
  in_progress_at: number | null
  expires_at: number
  finalizing_at: number | null
  completed_at: number | null
  failed_at: number | null
  expired_at: number | null
  cancelling_at: number | null
  cancelled_at: number | null
  request_counts: { total: number; completed: number; failed: number }
  usage: {
    input_tokens: number
    input_tokens_details: { cached_tokens: number }
    output_tokens: number
    output_tokens_details: { reasoning_tokens: number }
    total_tokens: number
  }
  metadata: Metadata | null
}
export interface BatchError {
  code: string
  message: string
  param: string | null
  /** Line of the input file, from 1. */ line: number | null
}
export interface CursorQueryInput {
  /** 1 to 100. Default 20. A page of large items has fewer: about 8 MB at most. */ limit?: number | undefined
  /** The id after which the page begins. */ after?: string | undefined
  [k: string]: unknown
}
export interface FileFields {
  /** Rows to train on (`fine-tune`), requests (`batch`), or a file of any other kind. */
  purpose: 'fine-tune' | 'batch' | 'evals' | 'user_data'
  'expires_after[anchor]'?: 'created_at'
  /** After how long the file is deleted. Not for `fine-tune`, which is kept until you delete it. */
  'expires_after[seconds]'?: number
}
export interface FileObject {
  id: string
  object: 'file'
  bytes: number
  /** Unix seconds. */ created_at: number
  /** When the file is deleted. Null: when you delete it. */ expires_at: number | null
  filename: string
  purpose: FilePurpose
  /** `uploaded`: the rows are being read. `error`: rows cannot be trained on, or the file cannot be read. */
  status: 'uploaded' | 'processed' | 'error'
  /** What is wrong with a file whose status is `error`. */ status_details: string | null
}
export interface FileQueryInput {
  /** 1 to 10,000. Default 10,000. */ limit?: number | undefined
  /** The id after which the page begins. */ after?: string | undefined
  /** By time of creation. Default desc: newest first. */ order?: 'asc' | 'desc' | undefined
  /** Those with this purpose. */ purpose?: FilePurpose | undefined
  [k: string]: unknown
}
export interface FilesDeleteResponse {
  id: string
  object: 'file'
  deleted: true
}
export interface CreateUpload {
  filename: string
  /** Rows to train on (`fine-tune`), requests (`batch`), or a file of any other kind. */
  purpose: 'fine-tune' | 'batch' | 'evals' | 'user_data'
  /** Size of the whole file. */ bytes: number
  /** Not used: the content decides. */ mime_type: string
  expires_after?: { anchor: 'created_at'; seconds: number; [k: string]: unknown } | null | undefined
  [k: string]: unknown
}
export interface Upload {
  id: string
  object: 'upload'
  /** Size of the whole file, as announced. */ bytes: number
  created_at: number
  /** Unix seconds. An upload that is not completed by then is deleted. */ expires_at: number
  filename: string
  purpose: 'fine-tune' | 'batch' | 'evals' | 'user_data'
  status: 'pending' | 'completed' | 'cancelled' | 'expired'
  /** The file of a completed upload. */ file: FileObject | null
}
export interface UploadsAddPartFields {}
export interface UploadPart {
  id: string
  object: 'upload.part'
  created_at: number
  upload_id: string
}
export interface UploadsCompleteBody {
  part_ids: string[]
  /** MD5 of the whole file, in hex or base64; checked if it is given. */ md5?: string | null | undefined
  [k: string]: unknown
}
export interface CreateEvalInput {
  name?: DisplayName | null | undefined
  metadata?: Metadata | null | undefined
  data_source_config:
    | {
        type: 'custom'
        /** JSON JsonObject of the rows. A run with another row fails. */ item_schema: JsonObject
        /** Whether graders see an answer. */ include_sample_schema?: boolean | null | undefined
        [k: string]: unknown
      }
    | {
        type: 'logs' | 'stored_completions'
        /** Which stored completions its runs take. */ metadata?: Metadata | null | undefined
        [k: string]: unknown
      }
  /** The graders. */ testing_criteria: GradersInput
  [k: string]: unknown
}
export interface Eval {
  id: string
  object: 'eval'
  name: string
  created_at: number
  data_source_config: { type: string; schema: JsonObject; [k: string]: unknown }
  testing_criteria: { [k: string]: unknown }[]
  metadata: Metadata
}
export interface EvalQueryInput {
  /** 1 to 100. Default 20. A page of large items has fewer: about 8 MB at most. */ limit?: number | undefined
  /** The id after which the page begins. */ after?: string | undefined
  /** By time of creation. Default asc. */ order?: 'asc' | 'desc' | undefined
  /** Default created_at. */ order_by?: 'created_at' | 'updated_at' | undefined
  [k: string]: unknown
}
export interface UpdateEval {
  name?: DisplayName | null | undefined
  /** All pairs: they replace those before. */ metadata?: Metadata | null | undefined
  [k: string]: unknown
}
export interface EvalsDeleteResponse {
  object: 'eval.deleted'
  deleted: true
  eval_id: string
}
export interface CreateRun {
  name?: DisplayName | null | undefined
  metadata?: Metadata | null | undefined
  data_source: DataSource
  [k: string]: unknown
}
export interface FileContent {
  type: 'file_content'
  /** Becomes a file of the account. */ content: {
    item: { [k: string]: unknown }
    /** The answer, if no model is asked. */ sample?: { [k: string]: unknown } | null | undefined
    [k: string]: unknown
  }[]
  [k: string]: unknown
}
export interface FileId {
  type: 'file_id'
  id: string
  [k: string]: unknown
}
export interface FunctionTool {
  type: 'function'
  name: string
  description?: string | null | undefined
  parameters?: { [k: string]: unknown } | null | undefined
  strict?: boolean | null | undefined
  [k: string]: unknown
}
export interface Run {
  /** Also the id of the evaluation. */ id: string
  object: 'eval.run'
  eval_id: string
  name: string
  model: string | null
  status: 'queued' | 'in_progress' | 'completed' | 'canceled' | 'failed'
  created_at: number
  data_source: { type: string; [k: string]: unknown }
  error: { code: string; message: string } | null
  metadata: Metadata
  /** Where the evaluation is. */ report_url: string
  result_counts: { total: number; passed: number; failed: number; errored: number }
  per_model_usage: {
    model_name: string
    invocation_count: number
    prompt_tokens: number
    cached_tokens: number
    completion_tokens: number
    total_tokens: number
  }[]
  per_testing_criteria_results: { testing_criteria: string; passed: number; failed: number }[]
}
export interface RunQueryInput {
  /** 1 to 100. Default 20. A page of large items has fewer: about 8 MB at most. */ limit?: number | undefined
  /** The id after which the page begins. */ after?: string | undefined
  /** By time of creation. Default asc. */ order?: 'asc' | 'desc' | undefined
  status?: 'queued' | 'in_progress' | 'completed' | 'canceled' | 'failed' | undefined
  [k: string]: unknown
}
export interface EvalsRunsDeleteResponse {
  object: 'eval.run.deleted'
  deleted: true
  run_id: string
}
export interface OutputItemQueryInput {
  /** 1 to 100. Default 20. A page of large items has fewer: about 8 MB at most. */ limit?: number | undefined
  /** The id after which the page begins. */ after?: string | undefined
  /** By row. Default asc. */ order?: 'asc' | 'desc' | undefined
  /** `fail`: also those with an error. */ status?: 'pass' | 'fail' | undefined
  [k: string]: unknown
}
export interface OutputItem {
  id: string
  object: 'eval.run.output_item'
  created_at: number
  eval_id: string
  run_id: string
  status: 'pass' | 'fail' | 'error'
  /** The number of the row, counted from 1. */ datasource_item_id: number
  datasource_item: JsonObject
  results: {
    name: string
    type: string
    passed: boolean
    /** Null if the grader failed. */ score: number | null
    sample: JsonObject | null
    [k: string]: unknown
  }[]
  sample: {
    input: { role: string; content: string | null; [k: string]: unknown }[]
    output: { role: string; content: string | null; [k: string]: unknown }[]
    model: string
    finish_reason: string
    temperature: number
    top_p: number
    seed: Seed
    max_completion_tokens: number
    usage: { prompt_tokens: number; cached_tokens: number; completion_tokens: number; total_tokens: number }
    error: { code: string; message: string } | null
  }
}
export interface CreateOpenaiJobInput {
  /** A base model of the hub, a model of the account (also as `ft:…`), or a name that the operator maps. */
  model: string
  /** A file for `fine-tune`, or a dataset. */ training_file: string
  validation_file?: string | null | undefined
  /** A part of the result’s name; other characters become `-`. */ suffix?: string | null | undefined
  seed?: number | null | undefined
  metadata?: Metadata | null | undefined
  method?: OpenaiFineTuningMethodInput | null | undefined
  /** The older place of those in `method.supervised`. */ hyperparameters?: Hyperparameters | null | undefined
  integrations?: Integration[] | null | undefined
  /** Not supported. Send it in method.supervised.hyperparameters. */ n_epochs?: null | undefined
  /** Not supported. Send it in method.supervised.hyperparameters. */ batch_size?: null | undefined
  /** Not supported. Send it in method.supervised.hyperparameters. */ learning_rate_multiplier?: null | undefined
  /** Not supported. Leave it out. */ prompt_loss_weight?: null | undefined
  /** Not supported. Leave it out. */ compute_classification_metrics?: null | undefined
  /** Not supported. Leave it out. */ classification_n_classes?: null | undefined
  /** Not supported. Leave it out. */ classification_positive_class?: null | undefined
  /** Not supported. Leave it out. */ classification_betas?: null | undefined
  [k: string]: unknown
}
export interface OpenaiFineTuningMethodInput {
  type: 'supervised' | 'dpo' | 'reinforcement'
  supervised?: { hyperparameters?: Hyperparameters | null } | null | undefined
  /** Rows of preferences: `input`, `preferred_output` and `non_preferred_output`. */
  dpo?: { hyperparameters?: DpoHyperparameters | null } | null | undefined
  /** Rows of prompts: `messages` that end with one of the user, and fields for the grader. */ reinforcement?: {
    /** What scores the answers: the reward. */ grader: GraderInput
    /** The form that answers have to have. */ response_format?: JsonObject | null | undefined
    hyperparameters?: ReinforcementHyperparameters | null | undefined
  } | null | undefined
}
export interface Hyperparameters {
  /** `epochs`. */ n_epochs?: ('auto' | number) | null | undefined
  /** `batch_size`. */ batch_size?: ('auto' | number) | null | undefined
  /** Times the default learning rate of the base gives `learning_rate`. */
  learning_rate_multiplier?: ('auto' | number) | null | undefined
}
export interface DpoHyperparameters {
  /** `epochs`. */ n_epochs?: ('auto' | number) | null | undefined
  /** `batch_size`. */ batch_size?: ('auto' | number) | null | undefined
  /** Times the default learning rate of the base gives `learning_rate`. */
  learning_rate_multiplier?: ('auto' | number) | null | undefined
  /** `beta`: how strongly the model is kept near the one that it starts from. */
  beta?: ('auto' | number) | null | undefined
}
export interface ReinforcementHyperparameters {
  /** `epochs`. */ n_epochs?: ('auto' | number) | null | undefined
  /** `batch_size`. */ batch_size?: ('auto' | number) | null | undefined
  /** Times the default learning rate of the base gives `learning_rate`. */
  learning_rate_multiplier?: ('auto' | number) | null | undefined
  /** Times 8, the answers to each prompt: `group_size`. */ compute_multiplier?: ('auto' | number) | null | undefined
  /** Steps from one evaluation to the next. */ eval_interval?: ('auto' | number) | null | undefined
  /** Answers to each held-out prompt. */ eval_samples?: ('auto' | number) | null | undefined
  reasoning_effort?: ('default' | 'low' | 'medium' | 'high') | null | undefined
}
export interface Integration {
  type: 'wandb'
  wandb: { project: string; name?: string | null; entity?: string | null; tags?: string[] | null; [k: string]: unknown }
  [k: string]: unknown
}
export interface OpenaiJob {
  id: string
  object: 'fine_tuning.job'
  /** Unix seconds. */ created_at: number
  finished_at: number | null
  estimated_finish: number | null
  /** What was trained. */ model: string
  /** The name of the result, once there is one. */ fine_tuned_model: string | null
  /** The account. */ organization_id: string
  status: 'validating_files' | 'queued' | 'running' | 'paused' | 'succeeded' | 'failed' | 'cancelled'
  error: { code: string; message: string; param: string | null } | null
  training_file: string
  validation_file: string | null
  /** The loss of every step as CSV in base64, once the job has ended. */ result_files: string[]
  /** Null until the job has ended. */ trained_tokens: number | null
  hyperparameters: { n_epochs: number; batch_size: number; learning_rate_multiplier: number }
  method: {
    /** A job with another objective of this service is shown as supervised. */
    type: 'supervised' | 'dpo' | 'reinforcement'
    supervised?: { hyperparameters: { n_epochs: number; batch_size: number; learning_rate_multiplier: number } }
    dpo?: { hyperparameters: { n_epochs: number; batch_size: number; learning_rate_multiplier: number; beta: number } }
    reinforcement?: {
      grader: JsonObject
      response_format: JsonObject | null
      hyperparameters: {
        n_epochs: number
        batch_size: number
        learning_rate_multiplier: number
        compute_multiplier: number
        eval_interval: number | 'auto'
        eval_samples: number
        reasoning_effort: string
      }
    }
  }
  seed: number
  metadata: Metadata | null
  integrations: Integration[] | null
  user_provided_suffix: string | null
}
export interface MetadataQueryInput {
  /** 1 to 100. Default 20. A page of large items has fewer: about 8 MB at most. */ limit?: number | undefined
  /** The id after which the page begins. */ after?: string | undefined
  /** `null`: those without metadata. Pairs are written as `metadata[key]=value`. */ metadata?: '' | 'null' | undefined
  [k: string]: unknown
}
export interface OpenaiJobEvent {
  id: string
  object: 'fine_tuning.job.event'
  created_at: number
  level: 'info' | 'warn' | 'error'
  message: string
  type: 'message' | 'metrics'
  /** The losses or rewards of a step, in events of type `metrics`. */ data: { [k: string]: unknown } | null
}
export interface OpenaiFineTuningJobsCheckpointsQuery {
  /** 1 to 100. Default 10. */ limit?: number | undefined
  /** The id after which the page begins. */ after?: string | undefined
  [k: string]: unknown
}
export interface OpenaiCheckpoint {
  id: string
  object: 'fine_tuning.job.checkpoint'
  created_at: number
  step_number: number
  /** A name that inference takes. */ fine_tuned_model_checkpoint: string
  fine_tuning_job_id: string
  metrics: {
    step: number
    train_loss?: number
    valid_loss?: number
    valid_mean_token_accuracy?: number
    train_mean_reward?: number
    full_valid_mean_reward?: number
  }
}
export interface OpenaiFineTuningDeleteModelResponse {
  id: string
  object: 'model'
  deleted: true
}
export interface OpenaiFineTuningPermissionsListResponse {
  object: 'list'
  data: { id: string; object: 'checkpoint.permission'; created_at: number; project_id: string }[]
  first_id: string | null
  last_id: string | null
  has_more: boolean
}
export interface OpenaiFineTuningPermissionsCreateBody {
  project_ids: string[]
  [k: string]: unknown
}
export interface OpenaiFineTuningPermissionsCreateResponse {
  object: 'list'
  data: { id: string; object: 'checkpoint.permission'; created_at: number; project_id: string }[]
  first_id: string | null
  last_id: string | null
  has_more: boolean
}
export interface OpenaiFineTuningPermissionsDeleteResponse {
  id: string
  object: 'checkpoint.permission'
  deleted: true
}
export interface ChatChunk {
  id: string
  object: 'chat.completion.chunk'
  created: number
  model: string
  choices: {
    index: number
    delta: ChatDelta
    logprobs: ChatLogprobs | null
    finish_reason: ('stop' | 'length' | 'tool_calls' | 'content_filter') | null
  }[]
  usage?: Usage | null
}
export interface ChatDelta {
  role?: 'assistant'
  content?: string
  reasoning_content?: string
  tool_calls?: { index: number; id?: string; type?: 'function'; function: { name?: string; arguments: string } }[]
}
