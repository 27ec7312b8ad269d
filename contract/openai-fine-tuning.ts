// OpenAI's fine-tuning API: the jobs and models of `/fine-tuning` in that API's shapes.
import { z } from 'zod'
import { digits, JsonObject, Metadata } from './common.ts'
import { CursorQuery, MetadataQuery, openaiList } from './files.ts'
import { Grader } from './graders.ts'
import { routesOf } from './route.ts'
import { onlyIf } from './sampling.ts'

const auto = <T extends z.ZodType>(number: T) => z.union([z.literal('auto'), number]).nullish()

// An unknown hyperparameter would change the result: it is refused.
export const Hyperparameters = z.strictObject({
  n_epochs: auto(z.int().min(1).max(50)).describe('`epochs`.'),
  batch_size: auto(z.int().min(1).max(256)).describe('`batch_size`.'),
  learning_rate_multiplier: auto(z.number().gt(0).max(1000)).describe(
    'Times the default learning rate of the base gives `learning_rate`.',
  ),
})
export type Hyperparameters = z.infer<typeof Hyperparameters>

export const DpoHyperparameters = Hyperparameters.extend({
  beta: auto(z.number().gt(0).max(2)).describe(
    '`beta`: how strongly the model is kept near the one that it starts from.',
  ),
})
export type DpoHyperparameters = z.infer<typeof DpoHyperparameters>

export const ReinforcementHyperparameters = Hyperparameters.extend({
  compute_multiplier: auto(z.number().gt(0).max(8)).describe('Times 8, the answers to each prompt: `group_size`.'),
  eval_interval: auto(z.int().min(1).max(1_000_000)).describe('Steps from one evaluation to the next.'),
  eval_samples: auto(z.int().min(1).max(64)).describe('Answers to each held-out prompt.'),
  reasoning_effort: z.enum(['default', 'low', 'medium', 'high']).nullish(),
})
export type ReinforcementHyperparameters = z.infer<typeof ReinforcementHyperparameters>

export const Method = z
  .strictObject({
    type: z.enum(['supervised', 'dpo', 'reinforcement']),
    supervised: z.strictObject({ hyperparameters: Hyperparameters.nullish() }).nullish(),
    dpo: z
      .strictObject({ hyperparameters: DpoHyperparameters.nullish() })
      .nullish()
      .describe('Rows of preferences: `input`, `preferred_output` and `non_preferred_output`.'),
    reinforcement: z
      .strictObject({
        grader: Grader.describe('What scores the answers: the reward.'),
        response_format: JsonObject.nullish().describe('The form that answers have to have.'),
        hyperparameters: ReinforcementHyperparameters.nullish(),
      })
      .nullish()
      .describe('Rows of prompts: `messages` that end with one of the user, and fields for the grader.'),
  })
  .superRefine((method, context) => {
    const { type } = method
    const foreign = (['supervised', 'dpo', 'reinforcement'] as const).find((kind) => method[kind] && kind !== type)
    if (type === 'reinforcement' && !method.reinforcement)
      context.addIssue({
        code: 'custom',
        path: ['reinforcement'],
        message: 'must have a grader that scores the answers',
      })
    else if (foreign)
      context.addIssue({
        code: 'custom',
        path: [foreign],
        message: `is for the type '${foreign}', and this method has '${type}'. Leave it out`,
      })
  })

export const Integration = z.looseObject({
  type: z.literal('wandb'),
  wandb: z.looseObject({
    project: z.string().regex(/^[\w.-]{1,128}$/, 'must be 1 to 128 letters, digits, dots, hyphens and underscores'),
    name: z.string().max(200).nullish(),
    entity: z.string().max(200).nullish(),
    tags: z.array(z.string().max(64)).max(50).nullish(),
  }),
})
export type Integration = z.infer<typeof Integration>

/** Hyperparameters that are not at the top. */
const inMethod = onlyIf(() => false, { enum: [null] }, 'Send it in method.supervised.hyperparameters')

export const CreateOpenaiJob = z.looseObject({
  model: z
    .string()
    .min(1)
    .max(256)
    .describe('A base model of the hub, a model of the account (also as `ft:…`), or a name that the operator maps.'),
  training_file: z.string().min(1).max(100).describe('A file for `fine-tune`, or a dataset.'),
  validation_file: z.string().min(1).max(100).nullish(),
  suffix: z.string().min(1).max(64).nullish().describe('A part of the result’s name; other characters become `-`.'),
  seed: z.int().min(0).max(4_294_967_295).nullish(),
  metadata: Metadata.nullish(),
  method: Method.nullish(),
  hyperparameters: Hyperparameters.nullish().describe('The older place of those in `method.supervised`.'),
  integrations: z.array(Integration).max(1).nullish(),
  n_epochs: inMethod,
  batch_size: inMethod,
  learning_rate_multiplier: inMethod,
  prompt_loss_weight: onlyIf(() => false, { enum: [null] }),
  compute_classification_metrics: onlyIf(() => false, { enum: [null] }),
  classification_n_classes: onlyIf(() => false, { enum: [null] }),
  classification_positive_class: onlyIf(() => false, { enum: [null] }),
  classification_betas: onlyIf(() => false, { enum: [null] }),
})
export type CreateOpenaiJob = z.infer<typeof CreateOpenaiJob>

const UsedHyperparameters = z.object({ n_epochs: z.int(), batch_size: z.int(), learning_rate_multiplier: z.number() })

export const OpenaiJob = z.object({
  id: z.string(),
  object: z.literal('fine_tuning.job'),
  created_at: z.int().describe('Unix seconds.'),
  finished_at: z.int().nullable(),
  estimated_finish: z.int().nullable(),
  model: z.string().describe('What was trained.'),
  fine_tuned_model: z.string().nullable().describe('The name of the result, once there is one.'),
  organization_id: z.string().describe('The account.'),
  status: z.enum(['validating_files', 'queued', 'running', 'paused', 'succeeded', 'failed', 'cancelled']),
  error: z.object({ code: z.string(), message: z.string(), param: z.string().nullable() }).nullable(),
  training_file: z.string(),
  validation_file: z.string().nullable(),
  result_files: z.array(z.string()).describe('The loss of every step as CSV in base64, once the job has ended.'),
  trained_tokens: z.int().nullable().describe('Null until the job has ended.'),
  hyperparameters: UsedHyperparameters,
  method: z.object({
    type: z
      .enum(['supervised', 'dpo', 'reinforcement'])
      .describe('A job with another objective of this service is shown as supervised.'),
    supervised: z.object({ hyperparameters: UsedHyperparameters }).optional(),
    dpo: z.object({ hyperparameters: UsedHyperparameters.extend({ beta: z.number() }) }).optional(),
    reinforcement: z
      .object({
        grader: JsonObject,
        response_format: JsonObject.nullable(),
        hyperparameters: UsedHyperparameters.extend({
          compute_multiplier: z.number(),
          eval_interval: z.union([z.int(), z.literal('auto')]),
          eval_samples: z.int(),
          reasoning_effort: z.string(),
        }),
      })
      .optional(),
  }),
  seed: z.int(),
  metadata: Metadata.nullable(),
  integrations: z.array(Integration).nullable(),
  user_provided_suffix: z.string().nullable(),
})
export type OpenaiJob = z.infer<typeof OpenaiJob>

export const OpenaiJobEvent = z.object({
  id: z.string(),
  object: z.literal('fine_tuning.job.event'),
  created_at: z.int(),
  level: z.enum(['info', 'warn', 'error']),
  message: z.string(),
  type: z.enum(['message', 'metrics']),
  data: z
    .record(z.string(), z.unknown())
    .nullable()
    .describe('The losses or rewards of a step, in events of type `metrics`.'),
})
export type OpenaiJobEvent = z.infer<typeof OpenaiJobEvent>

export const OpenaiCheckpoint = z.object({
  id: z.string(),
  object: z.literal('fine_tuning.job.checkpoint'),
  created_at: z.int(),
  step_number: z.int(),
  fine_tuned_model_checkpoint: z.string().describe('A name that inference takes.'),
  fine_tuning_job_id: z.string(),
  metrics: z.object({
    step: z.int(),
    train_loss: z.number().optional(),
    valid_loss: z.number().optional(),
    valid_mean_token_accuracy: z.number().optional(),
    train_mean_reward: z.number().optional(),
    full_valid_mean_reward: z.number().optional(),
  }),
})
export type OpenaiCheckpoint = z.infer<typeof OpenaiCheckpoint>

const route = routesOf({ tag: 'OpenAI fine-tuning', openai: true })
const JobParams = z.object({ job_id: z.string() })

export const OpenaiJobQuery = MetadataQuery
export type OpenaiJobQuery = z.infer<typeof OpenaiJobQuery>

export const createOpenaiJob = route('POST', '/fine_tuning/jobs', {
  scope: 'tuning:write',
  summary: 'Start a fine-tuning job',
  body: CreateOpenaiJob,
  responses: { 200: OpenaiJob },
  creates: true,
})
export const listOpenaiJobs = route('GET', '/fine_tuning/jobs', {
  scope: 'tuning:read',
  summary: 'The jobs of the account, newest first',
  query: OpenaiJobQuery,
  responses: { 200: openaiList(OpenaiJob) },
})
export const getOpenaiJob = route('GET', '/fine_tuning/jobs/{job_id}', {
  scope: 'tuning:read',
  summary: 'One job',
  params: JobParams,
  responses: { 200: OpenaiJob },
})
const change = <const A extends string>(action: A, summary: string, frees: boolean) =>
  route('POST', `/fine_tuning/jobs/{job_id}/${action}`, {
    scope: 'tuning:write',
    frees,
    summary,
    params: JobParams,
    body: z.looseObject({}).nullish(),
    responses: { 200: OpenaiJob },
  })
export const cancelOpenaiJob = change('cancel', 'Cancel a job', true)
export const pauseOpenaiJob = change('pause', 'Pause a job and save its progress', false)
export const resumeOpenaiJob = change('resume', 'Resume a paused job exactly where it stopped', false)

export const listOpenaiJobEvents = route('GET', '/fine_tuning/jobs/{job_id}/events', {
  scope: 'tuning:read',
  summary: 'The events of a job, newest first',
  params: JobParams,
  query: CursorQuery,
  responses: { 200: openaiList(OpenaiJobEvent) },
})
export const listOpenaiCheckpoints = route('GET', '/fine_tuning/jobs/{job_id}/checkpoints', {
  scope: 'tuning:read',
  summary: 'The checkpoints of a completed job that are models, the latest first',
  params: JobParams,
  query: CursorQuery.extend({ limit: digits(1, 100).default(10).describe('1 to 100. Default 10.') }),
  responses: { 200: openaiList(OpenaiCheckpoint) },
})

const Permission = z.object({
  id: z.string(),
  object: z.literal('checkpoint.permission'),
  created_at: z.int(),
  project_id: z.string(),
})
const CheckpointParams = z.object({ checkpoint: z.string() })
export const listCheckpointPermissions = route('GET', '/fine_tuning/checkpoints/{checkpoint*}/permissions', {
  scope: 'tuning:read',
  summary: 'Who else may use a checkpoint: nobody, as models belong to one account',
  params: CheckpointParams,
  responses: { 200: openaiList(Permission) },
})
export const createCheckpointPermissions = route('POST', '/fine_tuning/checkpoints/{checkpoint*}/permissions', {
  scope: 'tuning:write',
  summary: 'Refused: models cannot be shared with other accounts',
  params: CheckpointParams,
  body: z.looseObject({ project_ids: z.array(z.string()) }),
  responses: { 200: openaiList(Permission) },
})
export const deleteCheckpointPermission = route(
  'DELETE',
  '/fine_tuning/checkpoints/{checkpoint}/permissions/{permission_id}',
  {
    scope: 'tuning:write',
    summary: 'There is never one to delete',
    params: CheckpointParams.extend({ permission_id: z.string() }),
    responses: {
      200: z.object({ id: z.string(), object: z.literal('checkpoint.permission'), deleted: z.literal(true) }),
    },
  },
)

export const deleteModel = route('DELETE', '/models/{model_id*}', {
  scope: 'tuning:write',
  summary: 'Delete a fine-tuned model that no deployment, job or other model needs',
  params: z.object({ model_id: z.string() }),
  responses: { 200: z.object({ id: z.string(), object: z.literal('model'), deleted: z.literal(true) }) },
})
