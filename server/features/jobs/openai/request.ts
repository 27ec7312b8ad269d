// What OpenAI's API was asked for when it created a job, and what that means here.
import { ApiError } from '../../../../contract/errors.ts'
import type { Objective } from '../../../../contract/hyperparameters.ts'
import type { JobConfig } from '../../../../contract/job-config.ts'
import type { CreateOpenaiJob, DpoHyperparameters, Integration } from '../../../../contract/openai-fine-tuning.ts'
import type { JobRow } from '../store.ts'

/** Stored with the job. */
export interface OpenaiRequest {
  /** As it is in the result's name. */
  suffix?: string | undefined
  integrations?: Integration[] | undefined
}

export const openaiRequestOf = ({ openai_json }: Pick<JobRow, 'openai_json'>): OpenaiRequest | undefined =>
  openai_json ? (JSON.parse(openai_json) as OpenaiRequest) : undefined

/** That API keeps the checkpoints of the last three epochs. */
const keptCheckpoints = 3
const learning_rate_max = 0.1

/** A suffix without the characters that would break a name. */
const cleanSuffix = (suffix: string) => suffix.replace(/[^\w.-]+/g, '-')

export function storedRequest({ suffix, integrations }: CreateOpenaiJob): OpenaiRequest {
  return {
    ...(suffix != null && { suffix: cleanSuffix(suffix) }),
    ...(integrations != null && integrations.length > 0 && { integrations }),
  }
}

/** Where the hyperparameters of a request are, for messages. */
function hyperparametersOf({ method, hyperparameters }: CreateOpenaiJob): { given: DpoHyperparameters; at: string } {
  const type = method?.type === 'dpo' ? 'dpo' : 'supervised'
  const at = `method.${type}.hyperparameters`
  const inMethod = method?.[type]?.hyperparameters
  if (inMethod && hyperparameters)
    throw new ApiError('invalid_request', `'hyperparameters' and '${at}' say the same thing: give one of them.`, {
      param: 'hyperparameters',
    })
  return inMethod ? { given: inMethod, at } : { given: hyperparameters ?? {}, at: 'hyperparameters' }
}

/** What is asked for is learned from rows of this kind. */
export const objectiveOf = ({ method }: CreateOpenaiJob): Objective => (method?.type === 'dpo' ? 'dpo' : 'sft')

/**
 * The config of the job. `defaultRate` is the default learning rate of the model, which the multiplier multiplies.
 * Throws invalid_request.
 */
export function configOf(request: CreateOpenaiJob, defaultRate: number): JobConfig {
  const { given, at } = hyperparametersOf(request)
  const number = (name: keyof DpoHyperparameters) => (typeof given[name] === 'number' ? given[name] : undefined)
  const [epochs, batch_size] = [number('n_epochs'), number('batch_size')]
  const multiplier = number('learning_rate_multiplier')
  if (multiplier !== undefined && multiplier * defaultRate > learning_rate_max)
    throw new ApiError(
      'invalid_request',
      `'${at}.learning_rate_multiplier' must be at most ${Math.floor(learning_rate_max / defaultRate)}: ` +
        `the base rate of the model is ${defaultRate}.`,
      { param: `${at}.learning_rate_multiplier` },
    )
  const beta = number('beta')
  return {
    ...(objectiveOf(request) === 'dpo' && {
      method_options: { objective: 'dpo' as const, ...(beta !== undefined && { beta }) },
    }),
    training_config: {
      ...(epochs !== undefined && { epochs }),
      ...(batch_size !== undefined && { batch_size }),
      ...(multiplier !== undefined && { learning_rate: multiplier * defaultRate }),
      ...(request.seed != null && { seed: request.seed }),
    },
    evaluation_config: {
      keep_checkpoints: keptCheckpoints,
      ...(request.validation_file != null && { validation_dataset_id: request.validation_file }),
    },
  }
}
