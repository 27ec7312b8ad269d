// Jobs, events and checkpoints in the shapes of OpenAI's API.

import type { OpenaiCheckpoint, OpenaiJob, OpenaiJobEvent } from '../../../../contract/openai-fine-tuning.ts'
import { unixSeconds } from '../../../../lib/utc-day.ts'
import { fromJson } from '../../../platform/db/json.ts'
import type { JobEvents } from '../../../platform/db/schema.ts'
import { ftName, type MadeModel, readResolvedConfig } from '../../models/index.ts'
import type { JobRow } from '../store.ts'
import { statusOf } from '../store.ts'
import { groupSize, openaiRequestOf } from './request.ts'
import { rewardMetrics } from './reward-metrics.ts'
import type { StepMetrics } from './step-metrics.ts'

const secondsOrNull = (time: number | null) => (time === null ? null : unixSeconds(time))

/** `defaultRate` is the learning rate that a multiplier of 1 stands for. */
export function toJobResponse(job: JobRow, defaultRate: number): OpenaiJob {
  const { training_config, method_options, evaluation_config } = readResolvedConfig(job.resolved_config_json)
  const request = openaiRequestOf(job)
  const status = statusOf(job)
  const rate = training_config.learning_rate
  const hyperparameters = {
    n_epochs: training_config.epochs.value,
    batch_size: training_config.batch_size.value,
    learning_rate_multiplier: rate.source === 'base_size' ? 1 : Number((rate.value / defaultRate).toPrecision(6)),
  }
  const metadata = fromJson(job.metadata_json)
  const error = job.error_json ? (fromJson(job.error_json) as { code: string; message: string }) : null
  return {
    id: job.id,
    object: 'fine_tuning.job',
    created_at: unixSeconds(job.created_at),
    finished_at: secondsOrNull(job.finished_at),
    estimated_finish: secondsOrNull(job.estimated_completion),
    model: job.model_id,
    fine_tuned_model: job.model && ftNameOfResult(job),
    organization_id: job.account_id,
    status: status === 'completed' ? 'succeeded' : status,
    error: error && { code: error.code, message: error.message, param: null },
    training_file: job.dataset_id,
    validation_file: job.validation_dataset_id,
    result_files: job.result_file_id ? [job.result_file_id] : [],
    trained_tokens: status === 'completed' ? job.trained_tokens : null,
    hyperparameters,
    method: methodOf(method_options, evaluation_config, hyperparameters),
    seed: training_config.seed.value,
    metadata: Object.keys(metadata).length > 0 ? metadata : null,
    integrations: request?.integrations ?? null,
    user_provided_suffix: request?.suffix ?? null,
  }
}

type Config = ReturnType<typeof readResolvedConfig>

function methodOf(
  options: Config['method_options'],
  { every_steps }: Config['evaluation_config'],
  hyperparameters: OpenaiJob['hyperparameters'],
): OpenaiJob['method'] {
  if (options.objective.value === 'dpo')
    return { type: 'dpo', dpo: { hyperparameters: { ...hyperparameters, beta: options.beta.value } } }
  if (options.objective.value !== 'reinforcement') return { type: 'supervised', supervised: { hyperparameters } }
  const [first, ...others] = options.graders.value
  // That API has one grader: the mean of several is one, too.
  const graders = Object.fromEntries(options.graders.value.map((grader, index) => [`grader_${index + 1}`, grader]))
  const sum = Object.keys(graders).join(' + ')
  const calculate_output = `(${sum}) / ${options.graders.value.length}`
  const grader = others.length === 0 ? first! : { type: 'multi', name: 'mean', graders, calculate_output }
  return {
    type: 'reinforcement',
    reinforcement: {
      grader,
      response_format: options.response_format.value,
      hyperparameters: {
        ...hyperparameters,
        compute_multiplier: options.group_size.value / groupSize,
        eval_interval: every_steps.value ?? 'auto',
        eval_samples: options.evaluation_samples.value,
        reasoning_effort: options.reasoning_effort.value ?? 'default',
      },
    },
  }
}

const ftNameOfResult = (job: JobRow) =>
  ftName({
    base_model_id: job.base_model_id,
    account_id: job.account_id,
    suffix: openaiRequestOf(job)?.suffix,
    model_id: job.model!,
  })

const levels: Partial<Record<JobEvents['type'], OpenaiJobEvent['level']>> = { warning: 'warn', error: 'error' }
const eventPrefix = 'ftevent-'

export function toEventResponse({ job_id, seq, type, message, data_json, created_at }: JobEvents): OpenaiJobEvent {
  const data = data_json ? fromJson(data_json) : {}
  return {
    id: `${eventPrefix}${job_id}-${seq}`,
    object: 'fine_tuning.job.event',
    created_at: unixSeconds(created_at),
    level: levels[type] ?? 'info',
    message,
    type: type === 'metrics' ? 'metrics' : 'message',
    data: type === 'metrics' ? metricsOf(data) : null,
  }
}

/** The number of the event with this id; undefined if it is not one of the job. */
export function seqOf(job_id: string, event_id: string): number | undefined {
  const head = `${eventPrefix}${job_id}-`
  const seq = event_id.startsWith(head) ? event_id.slice(head.length) : ''
  return /^\d{1,15}$/.test(seq) ? Number(seq) : undefined
}

/** The metrics of an event under that API's names. */
const metricsOf = (data: Record<string, unknown>) => ({
  ...Object.fromEntries(
    [
      ['step', data.step],
      ['total_steps', data.steps_total],
      ['train_loss', data.loss ?? data.train_loss],
      ['valid_loss', data.validation_loss],
      ['valid_mean_token_accuracy', data.validation_accuracy],
      ['train_mean_reward', data.reward],
      ['full_valid_mean_reward', data.validation_reward],
      ['completion_tokens_mean', data.answer_tokens ?? data.validation_answer_tokens],
    ].filter(([, value]) => value !== undefined),
  ),
  ...rewardMetrics(data),
})

export const toCheckpointResponse = (model: MadeModel, metrics: StepMetrics | undefined): OpenaiCheckpoint => ({
  id: `ftckpt-${model.id}`,
  object: 'fine_tuning.job.checkpoint',
  created_at: unixSeconds(model.created_at),
  step_number: model.step ?? 0,
  fine_tuned_model_checkpoint: model.ft_name ?? model.id,
  fine_tuning_job_id: model.job_id!,
  metrics: { step: model.step ?? 0, ...metrics },
})
