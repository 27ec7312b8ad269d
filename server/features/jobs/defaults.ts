import type { Method } from '../../../contract/common.ts'
import { ApiError } from '../../../contract/errors.ts'
import type { ResolvedConfig } from '../../../contract/fine-tuning.ts'
import {
  type ComputedName,
  entriesOf,
  type GroupName,
  hyperparameters,
  method as methodEntry,
  type Objective,
  objectives,
  optionsFor,
  type ValueSource,
} from '../../../contract/hyperparameters.ts'
import type { JobConfig } from '../../../contract/job-config.ts'
import { type LocalBase, type Mixture, maxRowTokens, requireRowTokens } from '../hub/index.ts'
import type { StartingModel } from '../models/index.ts'

/**
 * Default learning rate of an adapter by the base's parameter count; see docs/decisions/043-default-hyperparameters.md
 * for measurements.
 */
function adapterLearningRate(parameters: number): number {
  if (parameters < 0.5e9) return 1e-3
  if (parameters < 2e9) return 5e-4
  return 2e-4
}

/**
 * Default learning rate of a job. Adapters need about ten times the rate of full training, and answers about ten times
 * that of preferences.
 */
export function defaultLearningRate(parameters: number, method: Method, objective: Objective): number {
  const ofMethod = adapterLearningRate(parameters) / (method === 'full' ? 10 : 1)
  return objective === 'sft' ? ofMethod : ofMethod / 10
}

/** Inputs of the defaults. All are known for a base in the catalogue before its weights are downloaded. */
export interface BaseInfo {
  base: Pick<LocalBase, 'id' | 'parameters' | 'context_length'>
  adapter?: StartingModel['adapter']
}

/** PEFT's name for all linear layers, until the weights are here and their names known. */
const allLinear = ['all-linear']
/** In `target_modules`: the projector of a base that reads pictures. */
const projectorName = 'projector'

interface Inputs {
  config: JobConfig
  method: Method
  base: BaseInfo['base']
  linear_modules: string[] | undefined
  mixture: Mixture | null | undefined
}

type Resolved<G extends GroupName> = NonNullable<ResolvedConfig[G]>

/** The defaults that depend on the job: one function for each entry of `hyperparameters` that is `computed`. */
const computedDefaults: {
  [G in GroupName]: { [K in ComputedName<G> & keyof Resolved<G>]: (inputs: Inputs) => Resolved<G>[K] }
} = {
  method_options: {},
  lora_config: {
    alpha: ({ config }) => byDefault(2 * (config.lora_config?.r ?? hyperparameters.lora_config.r.default)),
    target_modules: ({ linear_modules }) => byDefault(linear_modules ?? allLinear),
  },
  training_config: {
    learning_rate: ({ base, method, config }) => ({
      value: defaultLearningRate(base.parameters, method, config.method_options?.objective ?? 'sft'),
      source: 'base_size',
    }),
    max_length: ({ base }) => byDefault(maxRowTokens(base)),
  },
  evaluation_config: {},
}

const from =
  (source: ValueSource) =>
  <T>(value: T) => ({ value, source })
const byDefault = from('default')
const byRequest = from('request')
const byModel = from('model')

/** Bytes that a weight of an adapter takes in training: itself, its gradient and two moments, in float32. */
const bytes_per_adapter_weight = 16
/** Share of the memory for training that adapters of experts may take where a job does not say so. */
const experts_memory_share = 0.1

/** Whether a job that does not say trains experts. */
const trainsExperts = ({ mixture, config }: Inputs, r: number): boolean =>
  Boolean(mixture) &&
  !config.lora_config?.dropout &&
  mixture!.expert_weights * r * bytes_per_adapter_weight <= mixture!.memory_bytes * experts_memory_share

/** The values of a group that is valid: the requested ones, and defaults for the others. */
function resolveGroup<G extends GroupName>(
  group: G,
  requested: { [K in keyof Resolved<G>]?: unknown },
  inputs: Inputs,
): Resolved<G> {
  const values: Record<string, unknown> = requested
  const computed: Record<string, (inputs: Inputs) => unknown> = computedDefaults[group]
  const resolved = entriesOf(group)
    .filter(([, entry]) => entry.resolved)
    .map(([name, entry]) => {
      if (values[name] !== undefined) return [name, byRequest(values[name])]
      return [name, entry.computed ? computed[name]!(inputs) : byDefault(entry.default)]
    })
  return Object.fromEntries(resolved) as Resolved<G>
}

/**
 * All values that a job trains with, each with its source. `linear_modules` are the names of the base's linear layers,
 * and `mixture` tells of its experts, null if it has none to train; both undefined until its weights are here.
 * `projectorProblem` is why its projector cannot be trained, if it cannot. Throws invalid_request for a module that the
 * base lacks, for rows longer than its context, and for LoRA settings with full training.
 */
export function resolveConfig(
  config: JobConfig,
  info: BaseInfo,
  linear_modules: string[] | undefined,
  projectorProblem: string | null,
  mixture?: Mixture | null,
): ResolvedConfig {
  const { base, adapter } = info
  const { method = methodEntry.default, method_options = {}, training_config = {}, evaluation_config = {} } = config
  const inputs = { config, method, base, linear_modules, mixture }
  const trainsProjector = config.lora_config?.target_modules?.includes(projectorName) ?? false
  if (trainsProjector && projectorProblem !== null)
    throw invalidModules(` names the projector, which cannot be trained: ${projectorProblem}. Leave it out.`)
  const lora_config = method === 'full' ? refuseLora(config) : resolveLora(inputs, adapter)
  requireRowTokens(base, training_config.max_length, 'config.training_config.max_length')
  checkOptions(method_options)
  if (method_options.objective === 'reinforcement') checkReinforcement(config)
  checkEvaluation(evaluation_config)
  return {
    method: config.method ? byRequest(method) : byDefault(method),
    method_options: resolveGroup('method_options', withGraders(method_options), inputs),
    lora_config,
    projector: trainsProjector
      ? byRequest(true)
      : method !== 'full' && adapter?.projector
        ? byModel(true)
        : byDefault(false),
    training_config: resolveGroup('training_config', training_config, inputs),
    evaluation_config: resolveGroup(
      'evaluation_config',
      { ...evaluation_config, sample_prompts: evaluation_config.sample_prompts?.map(promptMessages) },
      inputs,
    ),
  }
}

function checkOptions(requested: NonNullable<JobConfig['method_options']>): void {
  const refuse = (name: string, why: string) => {
    const field = `config.method_options.${name}`
    throw new ApiError('invalid_request', `'${field}' ${why}`, { details: { field } })
  }
  const { objective = 'sft', loss_type = 'sigmoid', label_smoothing = 0 } = requested
  const foreign = Object.keys(requested).find((name) => !optionsFor(objective).includes(name))
  if (foreign) {
    const owners = objectives.filter((objective) => optionsFor(objective).includes(foreign)).join(' or ')
    refuse(foreign, `is for the objective ${owners}, and this job has '${objective}'. Set it, or leave the field out.`)
  }
  if (loss_type === 'ipo' && label_smoothing > 0)
    refuse('label_smoothing', "is for the loss types sigmoid and robust: 'ipo' has none. Leave it out.")
  if (loss_type === 'robust' && label_smoothing === 0)
    refuse('label_smoothing', "must be above 0 for 'robust': the share of the preferences that is wrong (0.1, say).")
}

/** One grader is a list of one. */
const withGraders = ({ grader, ...options }: NonNullable<JobConfig['method_options']>) =>
  grader === undefined ? options : { ...options, graders: [grader] }

function checkReinforcement({ method, method_options = {}, lora_config, evaluation_config }: JobConfig): void {
  const refuse = (field: string, why: string) => {
    throw new ApiError('invalid_request', `'config.${field}' ${why}`, { details: { field: `config.${field}` } })
  }
  const { grader, graders, watched_graders = [], environments = [] } = method_options
  if (grader !== undefined && graders !== undefined)
    refuse('method_options.grader', "and 'graders' exclude each other: give one of them.")
  const silent = environments.findIndex(({ rewards }) => !rewards)
  if (grader === undefined && graders === undefined && (environments.length === 0 || silent >= 0))
    refuse(
      'method_options.graders',
      "is required for 'reinforcement': give a grader whose score is the reward" +
        (silent >= 0 ? `, as the environment '${environments[silent]!.name}' gives none.` : ', or an environment.'),
    )
  const names = [...(grader ? [grader] : (graders ?? [])), ...environments, ...watched_graders].map(({ name }) => name)
  const twice = names.find((name, index) => names.indexOf(name) !== index)
  if (twice !== undefined)
    refuse(
      'method_options',
      `names '${twice}' twice: graders, watched graders and environments need names of their own.`,
    )
  if (method === 'full') refuse('method', "must be lora or qlora for 'reinforcement': it trains an adapter.")
  if (lora_config?.dropout)
    refuse('lora_config.dropout', "must be 0 for 'reinforcement': the trainer has to compute what was sampled.")
  if (evaluation_config?.keep_checkpoints)
    refuse('evaluation_config.keep_checkpoints', "must be 0 for 'reinforcement': the best state alone is kept.")
  if (evaluation_config?.sample_prompts?.length)
    refuse('evaluation_config.sample_prompts', "is not for 'reinforcement': evaluations show answers to held-out rows.")
}

type RequestedEvaluation = NonNullable<JobConfig['evaluation_config']>

const promptMessages = (prompt: NonNullable<RequestedEvaluation['sample_prompts']>[number]) =>
  typeof prompt === 'string' ? [{ role: 'user', content: prompt }] : prompt

function checkEvaluation(requested: RequestedEvaluation): void {
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
}

function refuseLora({ lora_config }: JobConfig): null {
  const { target_modules, ...others } = lora_config ?? {}
  const isForProjector = [...new Set(target_modules)].sort().join() === [...allLinear, projectorName].join()
  if (lora_config && !(isForProjector && Object.values(others).every((value) => value === undefined)))
    throw new ApiError(
      'invalid_request',
      "'config.lora_config' is for the methods lora and qlora; full training has no adapter. Leave it out, or give " +
        'it no more than "target_modules": ["all-linear", "projector"], which trains the projector of a base that ' +
        'reads pictures, too.',
      { details: { field: 'config.lora_config' } },
    )
  return null
}

const modulesField = 'config.lora_config.target_modules'
const invalidModules = (problem: string, details: object = {}) =>
  new ApiError('invalid_request', `'${modulesField}'${problem}`, { details: { field: modulesField, ...details } })

function resolveLora(inputs: Inputs, adapter: BaseInfo['adapter']): Resolved<'lora_config'> {
  const { config, base, linear_modules } = inputs
  const named = config.lora_config?.target_modules?.filter((name) => name !== projectorName)
  if (named?.length === 0)
    throw invalidModules(
      " names the projector alone. Name layers of the language model beside it, or 'all-linear' for all of them.",
    )
  const target_modules_all = named?.includes('all-linear') ? (linear_modules ?? allLinear) : named
  const requested = { ...config.lora_config, ...(target_modules_all && { target_modules: target_modules_all }) }
  const unknown = linear_modules
    ? (requested.target_modules?.filter((name) => !linear_modules.includes(name)) ?? [])
    : []
  if (unknown.length > 0)
    throw invalidModules(
      `: ${base.id} has no linear layer named ${unknown.map((name) => `'${name}'`).join(', ')}. ` +
        `It has ${linear_modules?.join(', ')}.`,
      { available: linear_modules },
    )
  requireExperts(inputs, adapter)
  const resolved = resolveGroup('lora_config', requested, inputs)
  if (!adapter) {
    const experts = requested.experts === undefined && byDefault(trainsExperts(inputs, resolved.r.value))
    return { ...resolved, ...(experts && { experts }) }
  }
  requireSameAdapter(requested, adapter, config.lora_config?.target_modules?.includes(projectorName))
  const { r, alpha, target_modules, experts } = adapter
  return {
    ...resolved,
    r: byModel(r),
    alpha: byModel(alpha),
    target_modules: byModel(target_modules),
    experts: byModel(experts),
  }
}

function requireExperts({ config, base, mixture }: Inputs, adapter: BaseInfo['adapter']): void {
  const field = 'config.lora_config.experts'
  const { experts, dropout } = config.lora_config ?? {}
  if (experts && mixture === null)
    throw new ApiError(
      'invalid_request',
      `'${field}': ${base.id} has no experts that an adapter can change. Leave it out.`,
      { details: { field } },
    )
  if (!dropout) return
  const why = `a dropout of 0, and this job has ${dropout}: experts have no inputs of their own to drop.`
  if (experts)
    throw new ApiError('invalid_request', `'${field}' needs ${why} Leave one of them out.`, { details: { field } })
  if (adapter?.experts)
    throw new ApiError(
      'invalid_request',
      `'config.lora_config.dropout': ${adapter.model_id} changes experts, which need ${why} Leave it out.`,
      { details: { field: 'config.lora_config.dropout' } },
    )
}

/** A job that continues an adapter must keep its rank, alpha, modules and experts. */
function requireSameAdapter(
  { r, alpha, target_modules, experts }: NonNullable<JobConfig['lora_config']>,
  adapter: NonNullable<StartingModel['adapter']>,
  trainsProjector = false,
): void {
  const differs = (field: string, adapterValue: unknown) =>
    new ApiError(
      'invalid_request',
      `'config.lora_config.${field}': ${adapter.model_id} has ${JSON.stringify(adapterValue)}, ` +
        'and a job that continues it keeps that value. Leave it out.',
      { details: { field: `config.lora_config.${field}` } },
    )
  if (r !== undefined && r !== adapter.r) throw differs('r', adapter.r)
  if (alpha !== undefined && alpha !== adapter.alpha) throw differs('alpha', adapter.alpha)
  if (experts !== undefined && experts !== adapter.experts) throw differs('experts', adapter.experts)
  const modules = (layers: string[], projector: boolean) => [...layers, ...(projector ? [projectorName] : [])]
  const ours = modules(adapter.target_modules, adapter.projector !== null)
  if (target_modules && modules([...target_modules].sort(), trainsProjector).join() !== ours.join())
    throw differs('target_modules', ours)
}
