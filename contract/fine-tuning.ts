import { z } from 'zod'
import {
  Deleted,
  Description,
  DisplayName,
  digits,
  eventOf,
  Labels,
  Metadata,
  page,
  SortedQuery,
  Time,
} from './common.ts'
import { hyperparameters, inForce, method, resolvedShape } from './hyperparameters.ts'
import { JobConfig } from './job-config.ts'
import { routesOf } from './route.ts'

export const CreateJob = z.strictObject({
  model_id: z.string().min(1).max(256).describe('A base model of the hub, or a model of the account to continue from.'),
  dataset_id: z.string().min(1).max(100).describe('The dataset to train on.'),
  config: JobConfig.default({}).describe('How to train; everything in it may be left out.'),
  evaluation: z
    .string()
    .min(1)
    .max(100)
    .optional()
    .describe(
      'An evaluation of the account. When the job is done, its result answers the same rows beside the model that ' +
        'training started from, and the same graders score the answers.',
    ),
  name: DisplayName.optional().describe(
    'Name of the job and of the model that it makes. Default: made of the names of the dataset and the base.',
  ),
  description: Description.default('').describe('What you want to remember of it; the model gets it too.'),
  metadata: Metadata.default({}).describe(
    'Up to 16 pairs of your own: keys of up to 64 characters, values of up to 512; the model gets them too.',
  ),
})

export const ResolvedConfig = z.object({
  method: inForce(method.resolved),
  method_options: z.object(resolvedShape(hyperparameters.method_options)),
  lora_config: z.object(resolvedShape(hyperparameters.lora_config)).nullable().describe('Null for full training.'),
  projector: inForce(z.boolean())
    .optional()
    .describe('Whether the projector of a base that reads pictures is trained too: as `target_modules` says.'),
  training_config: z.object(resolvedShape(hyperparameters.training_config)),
  evaluation_config: z.object(resolvedShape(hyperparameters.evaluation_config)),
  tokenizer: z
    .object({ sha256: z.string().nullable(), chat_template_sha256: z.string(), eos_token: z.string().nullable() })
    .optional()
    .describe(
      'The tokenizer of the base, frozen with the job: the hashes of its tokenizer.json and of its chat template, ' +
        'and its end token.',
    ),
  parse_control_tokens: z
    .boolean()
    .optional()
    .describe(
      'Whether text of rows that spells a control token becomes that token: ' +
        'the setting of the service, frozen with the job.',
    ),
})
export type ResolvedConfig = z.infer<typeof ResolvedConfig>

/** `paused` is not in the specification: docs/decisions/013-paused-status.md. */
export const jobStatuses = ['queued', 'running', 'paused', 'completed', 'failed', 'cancelled'] as const
export type JobStatus = (typeof jobStatuses)[number]

/** What is measured on the held-out rows beside their loss: of answers, or of preferences. */
export const validationFigures = {
  validation_exact: z
    .number()
    .optional()
    .describe('Share of the held-out rows whose every learned token was the first choice.'),
  validation_accuracy: z
    .number()
    .optional()
    .describe('Share of the learned tokens of the held-out rows that were the first choice.'),
  validation_reward_margin: z
    .number()
    .optional()
    .describe('With preferences: how much more the good answers are rewarded than the bad ones, on average.'),
  validation_reward_accuracy: z
    .number()
    .optional()
    .describe('Share of the held-out preferences on whose side the model is.'),
  validation_reward: z
    .number()
    .optional()
    .describe('With `reinforcement`: the mean score of the answers to the held-out prompts.'),
  validation_kl: z
    .number()
    .optional()
    .describe(
      'With `reinforcement`: how far the model has moved from its base: the estimated Kullback-Leibler divergence of ' +
        'a token of these answers, in nats.',
    ),
  validation_answer_tokens: z.number().optional().describe('Mean length of these answers, in tokens.'),
  validation_reasoning_tokens: z.number().optional().describe('How many of these tokens are thoughts, on average.'),
  validation_cut_share: z.number().optional().describe('Share of these answers that were cut.'),
}

/** What a step of reinforcement measures beside its loss. */
export const reinforcementFigures = {
  reward: z.number().optional().describe('With `reinforcement`: the mean score of all answers of the step.'),
  reward_deviation: z.number().optional().describe('The standard deviation of these scores.'),
  answer_tokens: z.number().optional().describe('Mean length of the answers of the step, in tokens.'),
  reasoning_tokens: z.number().optional().describe('How many of these tokens are thoughts, on average.'),
  turns: z.number().optional().describe('Mean number of the answers of the model in an episode of an environment.'),
  cut_share: z.number().optional().describe('Share of the answers that were cut at `max_tokens`.'),
  entropy: z
    .number()
    .optional()
    .describe('Mean of minus the log-probability of the sampled tokens, in nats: how open the answers still are.'),
  clipped_share: z.number().optional().describe('Share of the trained tokens whose gradient was clipped away.'),
  equal_share: z.number().optional().describe('Share of the prompts whose answers all got the same score.'),
  distinct_share: z.number().optional().describe('Share of the answers of a prompt that differ from the others.'),
  probability_gap: z
    .number()
    .optional()
    .describe('Mean difference of the log-probabilities of engine and trainer, without its sign, in nats.'),
  generated_tokens: z.int().optional().describe('Tokens that were sampled so far.'),
  grader_seconds: z.number().optional().describe('Mean time of grading an answer.'),
  grader_seconds_p95: z.number().optional().describe('Time within which 19 of 20 answers were graded.'),
  environment_seconds: z.number().optional().describe('Mean time that an environment took in an episode.'),
  grader_failures: z.int().optional().describe('Answers of the step that a grader could not score; they are left out.'),
}

export const JobMetrics = z.object({
  step: z
    .int()
    .optional()
    .describe(
      'The step of these losses: the latest reported one, or once completed the one whose weights are the result.',
    ),
  steps_trained: z.int().optional().describe('Once completed. More than `step` if an earlier state was the best.'),
  steps_total: z.int().optional(),
  loss: z.number().optional().describe('Loss of the batch of this step.'),
  learning_rate: z.number().optional(),
  tokens_per_second: z.number().optional(),
  train_loss: z
    .number()
    .optional()
    .describe('Mean over the epoch up to this step if it was evaluated or is the result; otherwise of its batch.'),
  train_seconds: z.number().optional(),
  predicted_seconds: z.number().optional().describe('The first estimate of `train_seconds`, after three steps.'),
  peak_memory_mb: z.number().optional(),
  predicted_memory_mb: z.number().optional().describe('The prediction of `peak_memory_mb` before the start.'),
  reward_margin: z
    .number()
    .optional()
    .describe('With preferences: how much more the good answers of the batch are rewarded than the bad ones.'),
  reward_accuracy: z.number().optional().describe('Share of the preferences of the batch on whose side the model is.'),
  ...reinforcementFigures,
  validation_loss: z.number().optional().describe('Validation loss after this step, if it was evaluated.'),
  ...validationFigures,
})
export type JobMetrics = z.infer<typeof JobMetrics>

export const Job = z.object({
  id: z.string(),
  name: z.string(),
  description: z.string(),
  metadata: Metadata,
  status: z.enum(jobStatuses),
  paused: z
    .boolean()
    .describe(
      'Whether the job is paused until it is resumed. While its progress is being saved, the status is `running`.',
    ),
  model_id: z.string(),
  dataset_id: z.string(),
  progress: z.number().describe('0 to 1.'),
  current_epoch: z.int(),
  metrics: JobMetrics,
  slowed_by: z
    .enum(['serving', 'other_work'])
    .nullable()
    .describe(
      'What takes processor time from a running job now: answers of this service, ' +
        'or other programs of the machine. Null: nothing.',
    ),
  waits_for: z
    .string()
    .nullable()
    .describe(
      'What a queued job waits for besides its turn: the training environment, which is being installed behind the ' +
        'first start, the weights of its base, or a device with enough free memory.',
    ),
  queue_position: z.int().nullable().describe('Place of a queued job: 1 is the next to begin.'),
  estimated_start: Time.nullable().describe(
    'Start of a queued job, estimated from similar jobs and the turns of accounts. Null if there are none.',
  ),
  estimated_completion: Time.nullable().describe('With the pauses for the turns of other accounts.'),
  created_at: Time,
  started_at: Time.nullable(),
  finished_at: Time.nullable(),
  error: z.object({ code: z.string(), message: z.string() }).nullable(),
  config: JobConfig,
  resolved_config: ResolvedConfig,
  trained_tokens: z.int().describe('Non-padding tokens, prompts included, times epochs.'),
  model: z.string().nullable().describe('The result, once completed: an id that inference and deployments take.'),
  evaluation: z.string().nullable().describe('The evaluation that the job named.'),
  result_evaluation: z.string().nullable().describe('The evaluation of the result, once completed.'),
})
export type Job = z.infer<typeof Job>

export const jobEventTypes = [
  'status',
  'progress',
  'metrics',
  'checkpoint',
  'sample',
  'log',
  'warning',
  'error',
] as const
export type JobEventType = (typeof jobEventTypes)[number]

export const JobEvent = eventOf(jobEventTypes)
export type JobEvent = z.infer<typeof JobEvent>

const route = routesOf({ tag: 'Fine-tuning' })
const IdParams = z.object({ job_id: z.string() })

export const createJob = route('POST', '/fine-tuning/jobs', {
  scope: 'tuning:write',
  also_with: { evaluation: ['datasets:read', 'inference'], 'config.evaluation_config.sample_prompts': ['inference'] },
  summary: 'Start a fine-tuning job',
  body: CreateJob,
  responses: { 201: Job },
})
export const JobEstimate = z.object({
  fits: z.boolean().describe('Whether the memory that is free now is enough.'),
  peak_memory_mb: z.number(),
  available_memory_mb: z.number(),
  devices: z
    .int()
    .describe(
      'On how many devices (GPUs) it would run. With several that share the weights of a base too large for one, ' +
        'nothing is tried: the memory is predicted, of each device, and the other figures are null.',
    ),
  pauses_serving: z
    .boolean()
    .describe(
      'Whether too little memory is free now and the job would put to sleep what is served there, which the operator ' +
        'allows (TUNERY_TRAINING_MAY_PAUSE_SERVING).',
    ),
  tokens: z
    .int()
    .nullable()
    .describe('Tokens of the training: without padding, with prompts, times epochs. Null if it does not fit.'),
  generated_tokens_max: z
    .int()
    .nullable()
    .optional()
    .describe(
      'With `reinforcement`: the most tokens that the answers of all steps and evaluations may have. Nothing is ' +
        'tried: tokens, time and price depend on how long the answers become, and are null.',
    ),
  seconds_max: z
    .number()
    .nullable()
    .optional()
    .describe(
      'With `reinforcement`: the time for so many tokens, at the rate of the last completed job of that objective on ' +
        'this base. Null if there was none.',
    ),
  steps: z.int().nullable(),
  rows: z.int().nullable().describe('How many rows will be trained on. Null where it does not fit.'),
  cut_rows: z
    .int()
    .nullable()
    .describe(
      'Rows that are longer than `max_length` and are cut there, including those left without a token to learn.',
    ),
  no_learned_rows: z
    .int()
    .nullable()
    .describe('Rows that are left out, as nothing of their answers is within `max_length`.'),
  seconds: z.number().nullable().describe('From its start to the registered result, with nothing else on the machine.'),
  tokens_per_second: z.number().nullable(),
  price: z.object({ amount: z.number(), currency: z.string() }).nullable(),
  resolved_config: ResolvedConfig,
})
export type JobEstimate = z.input<typeof JobEstimate>

export const estimateJob = route('POST', '/fine-tuning/jobs/estimate', {
  scope: 'tuning:write',
  summary: 'What a job would take: a few of its steps are tried on this machine, which takes some seconds',
  body: CreateJob,
  responses: { 200: JobEstimate },
})
export const JobQuery = SortedQuery.extend({
  status: z.enum(jobStatuses).optional().describe('Those with this status.'),
  metadata: z
    .string()
    .regex(/^[^=]{1,64}=/, "must be a pair as 'key=value'")
    .max(577)
    .optional()
    .describe('Those with this pair of metadata, as `key=value`.'),
})
export type JobQuery = z.infer<typeof JobQuery>

export const listJobs = route('GET', '/fine-tuning/jobs', {
  scope: 'tuning:read',
  summary: 'The jobs of the account, newest first or as sorted',
  query: JobQuery,
  responses: { 200: page(Job) },
})
export const getJob = route('GET', '/fine-tuning/jobs/{job_id}', {
  scope: 'tuning:read',
  summary: 'One job',
  params: IdParams,
  responses: { 200: Job },
})
export const changeJob = route('PATCH', '/fine-tuning/jobs/{job_id}', {
  scope: 'tuning:write',
  summary: 'Change the name, description or metadata of a job; its model keeps its own',
  params: IdParams,
  body: Labels,
  responses: { 200: Job },
})
export const cancelJob = route('POST', '/fine-tuning/jobs/{job_id}/cancel', {
  frees: true,
  scope: 'tuning:write',
  summary: 'Cancel a queued or running job',
  params: IdParams,
  body: z.strictObject({}).nullish(),
  responses: { 200: Job },
})
export const pauseJob = route('POST', '/fine-tuning/jobs/{job_id}/pause', {
  scope: 'tuning:write',
  summary: 'Pause a job and save its progress',
  params: IdParams,
  body: z.strictObject({}).nullish(),
  responses: { 200: Job },
})
export const resumeJob = route('POST', '/fine-tuning/jobs/{job_id}/resume', {
  scope: 'tuning:write',
  summary: 'Resume a paused job exactly where it stopped',
  params: IdParams,
  body: z.strictObject({}).nullish(),
  responses: { 200: Job },
})

export const deleteJob = route('DELETE', '/fine-tuning/jobs/{job_id}', {
  scope: 'tuning:write',
  summary: 'Delete a job that has ended, with its events and curves; its models stay, with their origin',
  params: IdParams,
  responses: { 200: Deleted },
})

export const jobEvents = route('GET', '/fine-tuning/jobs/{job_id}/events', {
  scope: 'tuning:read',
  summary: 'The events of a job, one JSON object a line, live until the job has ended',
  params: IdParams,
  query: z.strictObject({ after: digits(0).default(0).describe('Continue after this `seq`. Default 0.') }),
  produces: 'application/x-ndjson',
  responses: { 200: JobEvent },
})
