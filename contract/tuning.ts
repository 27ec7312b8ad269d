import { z } from 'zod'
import { digits, eventOf, ListQuery, Method, page, Time } from './common.ts'
import { route } from './route.ts'

const LoraConfig = z.strictObject({
  r: z.int().min(8).max(64).optional().describe('Rank, 8 to 64.'),
  alpha: z.int().min(1).max(1024).optional(),
  dropout: z.number().min(0).max(0.5).optional(),
  target_modules: z.array(z.string().min(1).max(100)).min(1).max(100).optional().describe('Default: all linear layers.'),
})

const TrainingConfig = z.strictObject({
  epochs: z.int().min(1).max(50).optional(),
  batch_size: z.int().min(1).max(256).optional().describe('Examples per optimizer step.'),
  learning_rate: z.number().gt(0).max(0.1).optional(),
  warmup_ratio: z.number().min(0).max(0.5).optional(),
  seed: z.int().min(0).max(4_294_967_295).optional(),
})

const Prompt = z.union([
  z.string().min(1).max(20_000),
  z
    .array(z.strictObject({ role: z.enum(['system', 'user', 'assistant']), content: z.string().min(1).max(20_000) }))
    .min(1)
    .max(50),
])

const EvaluationConfig = z.strictObject({
  validation_split: z.number().gt(0).max(0.5).optional().describe('Share of the rows that is held out of the training and scored as it goes.'),
  validation_dataset_id: z.string().min(1).max(100).optional().describe('A dataset to be scored instead of a share of the rows.'),
  every_steps: z.int().min(1).max(1_000_000).optional().describe('Default: at the end of each epoch.'),
  early_stopping_patience: z.int().min(1).max(100).optional().describe('End after this many evaluations without a better loss.'),
  sample_prompts: z.array(Prompt).max(8).optional().describe('Answered at each evaluation, beside the answer of the base: a text, or messages.'),
  keep_checkpoints: z.int().min(0).max(10).optional().describe('How many of the newest evaluated states become models of their own.'),
})

export const JobConfig = z.strictObject({
  method: Method.optional(),
  lora_config: LoraConfig.optional().describe('For lora and qlora.'),
  training_config: TrainingConfig.optional(),
  evaluation_config: EvaluationConfig.optional(),
})
export type JobConfig = z.infer<typeof JobConfig>

export const CreateJob = z.strictObject({
  model_id: z.string().min(1).max(256).describe('A base model of the hub, or a model of the account to go on from.'),
  dataset_id: z.string().min(1).max(100),
  config: JobConfig.default({}),
})

/** Where a value in force came from: the request, a default, one that depends on the size of the base, or the model that the job goes on from. */
export const valueSources = ['request', 'default', 'base_size', 'model'] as const
const inForce = <T extends z.ZodType>(value: T) => z.object({ value, source: z.enum(valueSources) })

export const ResolvedConfig = z.object({
  method: inForce(Method),
  lora_config: z
    .object({
      r: inForce(z.int()),
      alpha: inForce(z.int()),
      dropout: inForce(z.number()),
      target_modules: inForce(z.array(z.string())),
    })
    .nullable()
    .describe('Null for full training.'),
  training_config: z.object({
    epochs: inForce(z.int()),
    batch_size: inForce(z.int()),
    learning_rate: inForce(z.number()),
    warmup_ratio: inForce(z.number()),
    scheduler: inForce(z.enum(['cosine'])),
    seed: inForce(z.int()),
    max_length: inForce(z.int()),
  }),
  evaluation_config: z.object({
    validation_split: inForce(z.number()),
    validation_dataset_id: inForce(z.string().nullable()),
    every_steps: inForce(z.int().nullable()).describe('Null: at the end of each epoch.'),
    early_stopping_patience: inForce(z.int().nullable()),
    sample_prompts: inForce(z.array(z.array(z.object({ role: z.string(), content: z.string() })))),
    keep_checkpoints: inForce(z.int()),
  }),
  tokenizer: z
    .object({ sha256: z.string().nullable(), chat_template_sha256: z.string(), eos_token: z.string().nullable() })
    .optional()
    .describe('What the base makes of text, frozen with the job: the hashes of its tokenizer.json and of its chat template, and its end token.'),
})
export type ResolvedConfig = z.infer<typeof ResolvedConfig>

export const jobStatuses = ['queued', 'running', 'completed', 'failed', 'cancelled'] as const
export type JobStatus = (typeof jobStatuses)[number]

export const JobMetrics = z.object({
  step: z.int().optional(),
  steps_total: z.int().optional(),
  loss: z.number().optional().describe('Of the latest step.'),
  learning_rate: z.number().optional(),
  tokens_per_second: z.number().optional(),
  train_loss: z.number().optional().describe('Mean over the last epoch, once completed; until then that of the latest step.'),
  train_seconds: z.number().optional(),
  predicted_seconds: z.number().optional().describe('What `train_seconds` was first guessed to be, after three steps.'),
  peak_memory_mb: z.number().optional(),
  predicted_memory_mb: z.number().optional().describe('What `peak_memory_mb` was predicted to be, before the start.'),
  validation_loss: z.number().optional().describe('Of the latest evaluation; once completed, of the result.'),
  validation_exact: z.number().optional().describe('Share of the held-out rows whose every learned token was the first choice.'),
})
export type JobMetrics = z.infer<typeof JobMetrics>

export const Job = z.object({
  id: z.string(),
  status: z.enum(jobStatuses),
  paused: z.boolean().describe('Waiting until it is told to go on.'),
  model_id: z.string(),
  dataset_id: z.string(),
  progress: z.number().describe('0 to 1.'),
  current_epoch: z.int(),
  metrics: JobMetrics,
  estimated_completion: Time.nullable(),
  created_at: Time,
  started_at: Time.nullable(),
  finished_at: Time.nullable(),
  error: z.object({ code: z.string(), message: z.string() }).nullable(),
  config: JobConfig,
  resolved_config: ResolvedConfig,
  trained_tokens: z.int().describe('Non-padding tokens, prompts included, times epochs.'),
  model: z.string().nullable().describe('The result, once completed: an id that inference and deployments take.'),
})
export type Job = z.infer<typeof Job>

export const jobEventTypes = ['status', 'progress', 'metrics', 'checkpoint', 'sample', 'log', 'warning', 'error'] as const
export type JobEventType = (typeof jobEventTypes)[number]

export const JobEvent = eventOf(jobEventTypes)
export type JobEvent = z.infer<typeof JobEvent>

const tag = 'Fine-tuning'
const IdParams = z.object({ job_id: z.string() })

export const createJob = route({
  method: 'POST',
  path: '/fine-tuning/jobs',
  scope: 'tuning:write',
  tag,
  summary: 'Start a fine-tuning job',
  body: CreateJob,
  responses: { 201: Job },
})
export const JobEstimate = z.object({
  fits: z.boolean().describe('Whether the memory that is free now is enough.'),
  peak_memory_mb: z.number(),
  available_memory_mb: z.number(),
  tokens: z.int().nullable().describe('That will be trained on: non-padding tokens, prompts included, times epochs. Null where it does not fit.'),
  steps: z.int().nullable(),
  seconds: z.number().nullable().describe('From its start to the registered result, with nothing else on the machine.'),
  tokens_per_second: z.number().nullable(),
  price: z.object({ amount: z.number(), currency: z.string() }).nullable(),
  resolved_config: ResolvedConfig,
})
export type JobEstimate = z.input<typeof JobEstimate>

export const estimateJob = route({
  method: 'POST',
  path: '/fine-tuning/jobs/estimate',
  scope: 'tuning:write',
  tag,
  summary: 'What a job would take: a few of its steps are tried on this machine, which takes some seconds',
  body: CreateJob,
  responses: { 200: JobEstimate },
})
export const listJobs = route({
  method: 'GET',
  path: '/fine-tuning/jobs',
  scope: 'tuning:read',
  tag,
  summary: 'The jobs of the account, newest first',
  query: ListQuery,
  responses: { 200: page(Job) },
})
export const getJob = route({
  method: 'GET',
  path: '/fine-tuning/jobs/{job_id}',
  scope: 'tuning:read',
  tag,
  summary: 'One job',
  params: IdParams,
  responses: { 200: Job },
})
export const cancelJob = route({
  method: 'POST',
  path: '/fine-tuning/jobs/{job_id}/cancel',
  scope: 'tuning:write',
  tag,
  summary: 'Cancel a queued or running job',
  params: IdParams,
  body: z.strictObject({}).nullish(),
  responses: { 200: Job },
})
export const pauseJob = route({
  method: 'POST',
  path: '/fine-tuning/jobs/{job_id}/pause',
  scope: 'tuning:write',
  tag,
  summary: 'Let a job wait, its progress saved, until it is told to go on',
  params: IdParams,
  body: z.strictObject({}).nullish(),
  responses: { 200: Job },
})
export const resumeJob = route({
  method: 'POST',
  path: '/fine-tuning/jobs/{job_id}/resume',
  scope: 'tuning:write',
  tag,
  summary: 'Let a paused job go on, exactly where it stopped',
  params: IdParams,
  body: z.strictObject({}).nullish(),
  responses: { 200: Job },
})

export const JobCheckpoint = z.object({
  model: z.string().describe('An id that inference and deployments take.'),
  step: z.int().nullable(),
  validation_loss: z.number().nullable(),
  result: z.boolean().describe('Whether it is the result of the job.'),
  created_at: Time,
})
export const listCheckpoints = route({
  method: 'GET',
  path: '/fine-tuning/jobs/{job_id}/checkpoints',
  scope: 'tuning:read',
  tag,
  summary: 'The models that a completed job left: its result, and the states that it was asked to keep',
  params: IdParams,
  responses: { 200: z.object({ items: z.array(JobCheckpoint) }) },
})

export const JobRow = z.object({
  row: z.int().describe('Its place among the rows of the dataset, counted from 1.'),
  loss: z.number().describe('Mean loss of its learned tokens when it was last trained on, before that step.'),
  first_loss: z.number().describe('The same when it was first trained on.'),
  tokens: z.int().describe('How many of its tokens are learned.'),
  messages: z.array(z.unknown()).nullable().describe('Null where the dataset is gone.'),
})
export const listJobRows = route({
  method: 'GET',
  path: '/fine-tuning/jobs/{job_id}/rows',
  scope: 'tuning:read',
  tag,
  summary: 'The rows that a completed job found strangest, worst first: where to look for wrong examples',
  params: IdParams,
  query: z.strictObject({
    limit: ListQuery.shape.limit,
    after: digits(1).optional().describe('The row after which the page begins.'),
  }),
  responses: { 200: page(JobRow) },
})
export const jobEvents = route({
  method: 'GET',
  path: '/fine-tuning/jobs/{job_id}/events',
  scope: 'tuning:read',
  tag,
  summary: 'The events of a job, one JSON object a line, live until the job has ended',
  params: IdParams,
  query: z.strictObject({ after: digits(0).default(0).describe('Go on after this `seq`. Default 0.') }),
  produces: 'application/x-ndjson',
  responses: { 200: JobEvent },
})
