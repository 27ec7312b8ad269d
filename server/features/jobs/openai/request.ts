// What OpenAI's API was asked for when it created a job, and what that means here.
import { ApiError } from '../../../../contract/errors.ts'
import type { Objective } from '../../../../contract/hyperparameters.ts'
import type { JobConfig } from '../../../../contract/job-config.ts'
import type {
  CreateOpenaiJob,
  DpoHyperparameters,
  Integration,
  ReinforcementHyperparameters,
} from '../../../../contract/openai-fine-tuning.ts'
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

type Given = Omit<DpoHyperparameters & ReinforcementHyperparameters, 'reasoning_effort'>

/** Where the hyperparameters of a request are, for messages. */
function hyperparametersOf({ method, hyperparameters }: CreateOpenaiJob): { given: Given; at: string } {
  const type = method?.type ?? 'supervised'
  const at = `method.${type}.hyperparameters`
  const inMethod = method?.[type]?.hyperparameters
  if (inMethod && hyperparameters)
    throw new ApiError('invalid_request', `'hyperparameters' and '${at}' say the same thing: give one of them.`, {
      param: 'hyperparameters',
    })
  return inMethod ? { given: inMethod, at } : { given: hyperparameters ?? {}, at: 'hyperparameters' }
}

/** What is asked for is learned from rows of this kind. */
const objectives = { supervised: 'sft', dpo: 'dpo', reinforcement: 'reinforcement' } as const
export const objectiveOf = ({ method }: CreateOpenaiJob): Objective => objectives[method?.type ?? 'supervised']

/**
 * The config of the job. `defaultRate` is the default learning rate of the model, which the multiplier multiplies.
 * Throws invalid_request.
 */
export function configOf(request: CreateOpenaiJob, defaultRate: number): JobConfig {
  const { given, at } = hyperparametersOf(request)
  const number = (name: keyof Given) => (typeof given[name] === 'number' ? given[name] : undefined)
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
    ...(request.method?.reinforcement && { method_options: optionsOf(request.method.reinforcement, number) }),
    training_config: {
      ...(epochs !== undefined && { epochs }),
      ...(batch_size !== undefined && { batch_size }),
      ...(multiplier !== undefined && { learning_rate: multiplier * defaultRate }),
      ...(request.seed != null && { seed: request.seed }),
    },
    evaluation_config: {
      ...(objectiveOf(request) === 'reinforcement'
        ? intervalOf(number('eval_interval'))
        : { keep_checkpoints: keptCheckpoints }),
      ...(request.validation_file != null && { validation_dataset_id: request.validation_file }),
    },
  }
}

const intervalOf = (every_steps: number | undefined) => (every_steps === undefined ? {} : { every_steps })

/** Answers to a prompt that a `compute_multiplier` of 1 stands for. */
export const groupSize = 8

function optionsOf(
  { grader, response_format, hyperparameters }: NonNullable<NonNullable<CreateOpenaiJob['method']>['reinforcement']>,
  number: (name: keyof Given) => number | undefined,
): NonNullable<JobConfig['method_options']> {
  const [multiplier, evaluation_samples] = [number('compute_multiplier'), number('eval_samples')]
  const effort = hyperparameters?.reasoning_effort
  return {
    objective: 'reinforcement',
    grader,
    ...(response_format != null && { response_format }),
    ...(multiplier !== undefined && { group_size: Math.max(2, Math.round(groupSize * multiplier)) }),
    ...(evaluation_samples !== undefined && { evaluation_samples }),
    ...(effort != null && effort !== 'default' && { reasoning_effort: effort }),
  }
}
