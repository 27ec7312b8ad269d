import type { Method } from '../../contract/common.ts'
import { ApiError } from '../../contract/errors.ts'
import { type JobConfig, jobDefaults } from '../../contract/job-config.ts'
import type { ResolvedConfig, valueSources } from '../../contract/tuning.ts'
import { type LocalBase, requireRowTokens } from '../hub/service.ts'
import type { Origin } from './models/starting-model.ts'

/** The rate that suits an adapter on a base of this many parameters; measured and reasoned in docs/defaults.md. */
export function adapterLearningRate(parameters: number): number {
  if (parameters < 0.5e9) return 1e-3
  if (parameters < 2e9) return 5e-4
  return 2e-4
}

/** An adapter wants about ten times the rate of full training. */
const fullLearningRate = (parameters: number) => adapterLearningRate(parameters) / 10

/** What the defaults go by: all of it is known of a base of the catalogue before its weights are here. */
export interface Expected {
  base: Pick<LocalBase, 'id' | 'parameters' | 'context_length'>
  adapter?: Origin['adapter']
}

/** PEFT's word for them, until the weights are here and tell their names. */
const allLinear = ['all-linear']

type Lora = NonNullable<JobConfig['lora_config']>

/** A run that goes on from an adapter has its shape. */
function resolveAdapter(
  { r, alpha, dropout, target_modules }: Lora,
  adapter: NonNullable<Origin['adapter']>,
): ResolvedConfig['lora_config'] {
  const differs = (field: string, theirs: unknown) =>
    new ApiError(
      'invalid_request',
      `'config.lora_config.${field}': ${adapter.model_id} has ${JSON.stringify(theirs)}, and a job that goes on from it keeps that. Leave it out.`,
      {
        details: { field: `config.lora_config.${field}` },
      },
    )
  if (r !== undefined && r !== adapter.r) throw differs('r', adapter.r)
  if (alpha !== undefined && alpha !== adapter.alpha) throw differs('alpha', adapter.alpha)
  if (target_modules && [...target_modules].sort().join() !== adapter.target_modules.join())
    throw differs('target_modules', adapter.target_modules)
  const kept = <T>(value: T) => ({ value, source: 'model' as const })
  return {
    r: kept(adapter.r),
    alpha: kept(adapter.alpha),
    dropout: given<number>(dropout, jobDefaults.dropout),
    target_modules: kept(adapter.target_modules),
  }
}

type Source = (typeof valueSources)[number]
const given = <T>(value: T | undefined, fallback: T, source: Source = 'default') =>
  value === undefined ? { value: fallback, source } : { value, source: 'request' as const }

/**
 * Every value that a job will train with, and where it came from. `linear_modules` are the base's own linear layers,
 * undefined until they are known. Throws invalid_request for a module that the base does not have, for rows longer than
 * its context, and for adapter settings of a full training.
 */
export function resolveConfig(
  config: JobConfig,
  origin: Expected,
  linear_modules: string[] | undefined,
): ResolvedConfig {
  const { base } = origin
  const method = config.method ?? jobDefaults.method
  const training = config.training_config ?? {}
  const rate = method === 'full' ? fullLearningRate : adapterLearningRate
  return {
    method: given<Method>(config.method, jobDefaults.method),
    lora_config: resolveLora(config, origin, linear_modules),
    training_config: {
      epochs: given<number>(training.epochs, jobDefaults.epochs),
      batch_size: given<number>(training.batch_size, jobDefaults.batch_size),
      learning_rate: given(training.learning_rate, rate(base.parameters), 'base_size'),
      warmup_ratio: given<number>(training.warmup_ratio, jobDefaults.warmup_ratio),
      scheduler: { value: 'cosine', source: 'default' },
      seed: given<number>(training.seed, jobDefaults.seed),
      max_length: given(
        training.max_length,
        requireRowTokens(base, training.max_length, 'config.training_config.max_length'),
      ),
    },
    evaluation_config: resolveEvaluation(config.evaluation_config ?? {}),
  }
}

function resolveEvaluation(asked: NonNullable<JobConfig['evaluation_config']>): ResolvedConfig['evaluation_config'] {
  const refuse = (field: string, why: string) => {
    throw new ApiError('invalid_request', `'config.evaluation_config.${field}' ${why}`, {
      details: { field: `config.evaluation_config.${field}` },
    })
  }
  const validated = asked.validation_split !== undefined || asked.validation_dataset_id !== undefined
  if (asked.validation_split !== undefined && asked.validation_dataset_id !== undefined)
    refuse('validation_split', 'and a validation_dataset_id exclude each other: give one of them.')
  if (asked.early_stopping_patience !== undefined && !validated)
    refuse(
      'early_stopping_patience',
      'needs held-out rows to tell what is better: give a validation_split (0.1, say) or a validation_dataset_id.',
    )
  const messages = (prompt: NonNullable<typeof asked.sample_prompts>[number]) =>
    typeof prompt === 'string' ? [{ role: 'user', content: prompt }] : prompt
  return {
    validation_split: given<number>(asked.validation_split, jobDefaults.validation_split),
    validation_dataset_id: given<string | null>(asked.validation_dataset_id, null),
    every_steps: given<number | null>(asked.every_steps, null),
    early_stopping_patience: given<number | null>(asked.early_stopping_patience, null),
    sample_prompts: given(asked.sample_prompts?.map(messages), []),
    keep_checkpoints: given<number>(asked.keep_checkpoints, jobDefaults.keep_checkpoints),
  }
}

function resolveLora(
  { method, lora_config }: JobConfig,
  { base, adapter }: Expected,
  linear_modules: string[] | undefined,
): ResolvedConfig['lora_config'] {
  if (method === 'full') {
    if (lora_config)
      throw new ApiError(
        'invalid_request',
        `'config.lora_config' is for the methods lora and qlora; full training has no adapter. Leave it out.`,
        {
          details: { field: 'config.lora_config' },
        },
      )
    return null
  }
  const { r, alpha, dropout, target_modules } = lora_config ?? {}
  const unknown = linear_modules ? (target_modules?.filter((name) => !linear_modules.includes(name)) ?? []) : []
  if (unknown.length > 0)
    throw new ApiError(
      'invalid_request',
      `'config.lora_config.target_modules': ${base.id} has no linear layer named ${unknown.map((name) => `'${name}'`).join(', ')}. It has ${linear_modules?.join(', ')}.`,
      { details: { field: 'config.lora_config.target_modules', available: linear_modules } },
    )
  if (adapter) return resolveAdapter(lora_config ?? {}, adapter)
  const rank = given<number>(r, jobDefaults.r)
  return {
    r: rank,
    alpha: given(alpha, 2 * rank.value),
    dropout: given<number>(dropout, jobDefaults.dropout),
    target_modules: given(target_modules, linear_modules ?? allLinear),
  }
}
