import type { Method } from '../../contract/common.ts'
import { ApiError } from '../../contract/errors.ts'
import { type JobConfig, jobDefaults } from '../../contract/job-config.ts'
import type { ResolvedConfig, valueSources } from '../../contract/tuning.ts'
import { type LocalBase, requireRowTokens } from '../hub/index.ts'
import type { StartingModel } from './models/starting-model.ts'

/** Default learning rate of an adapter by the base's parameter count; see docs/defaults.md for measurements. */
export function adapterLearningRate(parameters: number): number {
  if (parameters < 0.5e9) return 1e-3
  if (parameters < 2e9) return 5e-4
  return 2e-4
}

/** Adapters need about ten times the learning rate of full training. */
const fullLearningRate = (parameters: number) => adapterLearningRate(parameters) / 10

/** Inputs of the defaults. All are known for a base in the catalogue before its weights are downloaded. */
export interface BaseInfo {
  base: Pick<LocalBase, 'id' | 'parameters' | 'context_length'>
  adapter?: StartingModel['adapter']
}

/** PEFT's name for all linear layers, until the weights are here and their names known. */
const allLinear = ['all-linear']

type Lora = NonNullable<JobConfig['lora_config']>

/** A job that continues an adapter must keep its rank, alpha and modules. */
function resolveAdapter(
  { r, alpha, dropout, target_modules }: Lora,
  adapter: NonNullable<StartingModel['adapter']>,
): ResolvedConfig['lora_config'] {
  const differs = (field: string, adapterValue: unknown) =>
    new ApiError(
      'invalid_request',
      `'config.lora_config.${field}': ${adapter.model_id} has ${JSON.stringify(adapterValue)}, ` +
        'and a job that continues it keeps that value. Leave it out.',
      {
        details: { field: `config.lora_config.${field}` },
      },
    )
  if (r !== undefined && r !== adapter.r) throw differs('r', adapter.r)
  if (alpha !== undefined && alpha !== adapter.alpha) throw differs('alpha', adapter.alpha)
  if (target_modules && [...target_modules].sort().join() !== adapter.target_modules.join())
    throw differs('target_modules', adapter.target_modules)
  const fromModel = <T>(value: T) => ({ value, source: 'model' as const })
  return {
    r: fromModel(adapter.r),
    alpha: fromModel(adapter.alpha),
    dropout: withSource<number>(dropout, jobDefaults.dropout),
    target_modules: fromModel(adapter.target_modules),
  }
}

type Source = (typeof valueSources)[number]
const withSource = <T>(value: T | undefined, fallback: T, source: Source = 'default') =>
  value === undefined ? { value: fallback, source } : { value, source: 'request' as const }

/**
 * All values that a job trains with, each with its source. `linear_modules` are the names of the base's linear layers,
 * undefined until its weights are here. Throws invalid_request for a module that the base lacks, for rows longer than
 * its context, and for LoRA settings with full training.
 */
export function resolveConfig(config: JobConfig, info: BaseInfo, linear_modules: string[] | undefined): ResolvedConfig {
  const { base } = info
  const method = config.method ?? jobDefaults.method
  const training = config.training_config ?? {}
  const rate = method === 'full' ? fullLearningRate : adapterLearningRate
  return {
    method: withSource<Method>(config.method, jobDefaults.method),
    lora_config: resolveLora(config, info, linear_modules),
    training_config: {
      epochs: withSource<number>(training.epochs, jobDefaults.epochs),
      batch_size: withSource<number>(training.batch_size, jobDefaults.batch_size),
      learning_rate: withSource(training.learning_rate, rate(base.parameters), 'base_size'),
      warmup_ratio: withSource<number>(training.warmup_ratio, jobDefaults.warmup_ratio),
      scheduler: { value: 'cosine', source: 'default' },
      seed: withSource<number>(training.seed, jobDefaults.seed),
      max_length: withSource(
        training.max_length,
        requireRowTokens(base, training.max_length, 'config.training_config.max_length'),
      ),
    },
    evaluation_config: resolveEvaluation(config.evaluation_config ?? {}),
  }
}

function resolveEvaluation(
  requested: NonNullable<JobConfig['evaluation_config']>,
): ResolvedConfig['evaluation_config'] {
  const refuse = (field: string, why: string) => {
    throw new ApiError('invalid_request', `'config.evaluation_config.${field}' ${why}`, {
      details: { field: `config.evaluation_config.${field}` },
    })
  }
  const validated = requested.validation_split !== undefined || requested.validation_dataset_id !== undefined
  if (requested.validation_split !== undefined && requested.validation_dataset_id !== undefined)
    refuse('validation_split', 'and a validation_dataset_id exclude each other: give one of them.')
  if (requested.early_stopping_patience !== undefined && !validated)
    refuse(
      'early_stopping_patience',
      'needs held-out rows to tell what is better: give a validation_split (0.1, say) or a validation_dataset_id.',
    )
  const messages = (prompt: NonNullable<typeof requested.sample_prompts>[number]) =>
    typeof prompt === 'string' ? [{ role: 'user', content: prompt }] : prompt
  return {
    validation_split: withSource<number>(requested.validation_split, jobDefaults.validation_split),
    validation_dataset_id: withSource<string | null>(requested.validation_dataset_id, null),
    every_steps: withSource<number | null>(requested.every_steps, null),
    early_stopping_patience: withSource<number | null>(requested.early_stopping_patience, null),
    sample_prompts: withSource(requested.sample_prompts?.map(messages), []),
    keep_checkpoints: withSource<number>(requested.keep_checkpoints, jobDefaults.keep_checkpoints),
  }
}

function resolveLora(
  { method, lora_config }: JobConfig,
  { base, adapter }: BaseInfo,
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
      `'config.lora_config.target_modules': ${base.id} has no linear layer named ` +
        `${unknown.map((name) => `'${name}'`).join(', ')}. It has ${linear_modules?.join(', ')}.`,
      { details: { field: 'config.lora_config.target_modules', available: linear_modules } },
    )
  if (adapter) return resolveAdapter(lora_config ?? {}, adapter)
  const rank = withSource<number>(r, jobDefaults.r)
  return {
    r: rank,
    alpha: withSource(alpha, 2 * rank.value),
    dropout: withSource<number>(dropout, jobDefaults.dropout),
    target_modules: withSource(target_modules, linear_modules ?? allLinear),
  }
}
