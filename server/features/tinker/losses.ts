// The losses of Tinker's API, and their data as the trainer reads it (trainer/policy/data.py). Each datum has the
// tokens of its input, and the same number of target tokens, whose probability is asked for at each position.
import { ApiError } from '../../../contract/errors.ts'
import { type Datum, type Tensor, type TrainingRequest, writeTrainingOutput } from './wire/messages.ts'

/** Most tokens of one request. */
const tokensMax = 1_000_000

/** A datum for the trainer. */
interface TrainerDatum {
  ids: number[]
  start: number
  labels?: number[]
  weights?: number[]
  advantages?: number[]
  old?: number[]
  trained?: number[]
}

export interface TrainingWork {
  command: 'forward' | 'forward_backward'
  fields: Record<string, unknown>
  tokens: number
  lengths: number[]
  /** Positions of each datum that are computed; undefined: all. */
  computed: (number[] | undefined)[]
}

interface Loss {
  /** Fields of loss_fn_inputs beside target_tokens, and whether they may be left out. */
  inputs: Record<string, 'float32'>
  optional: readonly string[]
  /** The trainer's names of the fields. */
  names: Record<string, 'weights' | 'advantages' | 'old'>
  config: readonly string[]
}

const policy = {
  inputs: { logprobs: 'float32', advantages: 'float32' },
  optional: [],
  names: { logprobs: 'old', advantages: 'advantages' },
} as const
const clipping = ['clip_low_threshold', 'clip_high_threshold'] as const

const losses: Record<string, Loss> = {
  cross_entropy: { inputs: { weights: 'float32' }, optional: ['weights'], names: { weights: 'weights' }, config: [] },
  importance_sampling: { ...policy, config: [] },
  ppo: { ...policy, config: clipping },
  cispo: { ...policy, config: clipping },
  gspo: {
    ...policy,
    inputs: { ...policy.inputs, sequence_ratio_mask: 'float32' },
    optional: ['sequence_ratio_mask'],
    config: clipping,
  },
}

/** Turns a request into a command of the trainer. Throws invalid_request, parameter_not_supported. */
export function trainingWork({ data, loss_fn, loss_fn_config, forward_only }: TrainingRequest): TrainingWork {
  const loss = Object.hasOwn(losses, loss_fn) ? losses[loss_fn]! : undefined
  if (!loss)
    throw new ApiError(
      'parameter_not_supported',
      `There is no loss '${loss_fn.slice(0, 100)}' here. There are ${Object.keys(losses).join(', ')}; others can be ` +
        'computed by the client (forward_backward_custom).',
    )
  if (data.length === 0) throw new ApiError('invalid_request', 'The request has no data.')
  const tokens = data.reduce((sum, datum) => sum + datum.tokens.length, 0)
  if (tokens > tokensMax)
    throw new ApiError('invalid_request', `The data have ${tokens} tokens; ${tokensMax} at most are taken at once.`)
  const made = data.map((datum, place) => trainerDatum(datum, place, loss, loss_fn))
  const bounds = boundsOf(loss, loss_fn, loss_fn_config)
  return {
    command: forward_only ? 'forward' : 'forward_backward',
    fields: { data: made, ...(!forward_only && { loss: loss_fn, ...bounds }) },
    tokens,
    lengths: data.map((datum) => datum.tokens.length),
    computed: made.map(({ trained }) => trained?.map((position) => position - 1)),
  }
}

/** How far a ratio may be from 1 on either side. Tinker's thresholds are the bounds themselves. */
function boundsOf(loss: Loss, name: string, config: TrainingRequest['loss_fn_config']) {
  for (const key of config.keys())
    if (!loss.config.includes(key))
      throw new ApiError(
        'parameter_not_supported',
        `The loss '${name}' has no setting '${key.slice(0, 100)}'. ${
          loss.config.length > 0 ? `It has ${loss.config.join(' and ')}.` : 'It has none.'
        }`,
      )
  if (loss.config.length === 0) return {}
  const [low, high] = clipping.map((key, at) => {
    const value = config.get(key) ?? [0.8, 1.2][at]!
    if (typeof value !== 'number' || !Number.isFinite(value) || value < 0)
      throw new ApiError('invalid_request', `'${key}' must be a number of 0 or more.`)
    return value
  }) as [number, number]
  if (low > 1 || high < 1)
    throw new ApiError('invalid_request', `'${clipping[0]}' must be at most 1, and '${clipping[1]}' at least 1.`)
  return { low: 1 - low, high: high - 1 }
}

function trainerDatum({ tokens, inputs }: Datum, place: number, loss: Loss, loss_fn: string): TrainerDatum {
  const where = `data[${place}]`
  if (tokens.length === 0) throw new ApiError('invalid_request', `${where} has no tokens.`)
  for (const name of inputs.keys())
    if (name !== 'target_tokens' && !Object.hasOwn(loss.inputs, name))
      throw new ApiError(
        'parameter_not_supported',
        `${where} has '${name.slice(0, 100)}', which the loss '${loss_fn}' does not read. It reads target_tokens, ` +
          `${Object.keys(loss.inputs).join(', ')}.`,
      )
  const targets = values(inputs.get('target_tokens'), 'int64', `${where}: target_tokens`, tokens.length)!
  const start = 1
  const datum: TrainerDatum = { ids: [...tokens, targets.at(-1)!], start }
  // Otherwise the text itself has them.
  if (targets.some((target, at) => at < tokens.length - 1 && target !== tokens[at + 1])) datum.labels = targets
  const given: Record<string, number[]> = {}
  for (const [name, dtype] of Object.entries(loss.inputs)) {
    const tensor = inputs.get(name)
    if (!tensor && loss.optional.includes(name)) continue
    given[name] = values(tensor, dtype, `${where}: ${name}`, tokens.length)!
  }
  const mask = given.sequence_ratio_mask
  const kept = mask?.flatMap((value, at) => (value === 0 ? [] : [at]))
  if (kept?.length === 0) throw new ApiError('invalid_request', `${where}: sequence_ratio_mask leaves no token.`)
  const chosen = (array: number[]) => (kept ? kept.map((at) => array[at]!) : array)
  if (kept) {
    datum.trained = kept.map((at) => at + 1)
    if (datum.labels) datum.labels = chosen(datum.labels)
  }
  for (const [name, own] of Object.entries(loss.names)) if (given[name]) datum[own] = chosen(given[name])
  return datum
}

function values(tensor: Tensor | undefined, dtype: Tensor['dtype'], what: string, length: number): number[] {
  if (!tensor) throw new ApiError('invalid_request', `${what} is missing.`)
  // An empty tensor of floats stands for numbers of either kind.
  if (tensor.dtype !== dtype) throw new ApiError('invalid_request', `${what} must be a tensor of ${dtype}.`)
  if (tensor.values.length !== length)
    throw new ApiError(
      'invalid_request',
      `${what} has ${tensor.values.length} numbers, and the input has ${length} tokens: one is needed for each.`,
    )
  const wrong = tensor.values.findIndex((value) => !Number.isFinite(value))
  if (wrong !== -1) throw new ApiError('invalid_request', `${what}[${wrong}] is not a finite number.`)
  return tensor.values
}

/** The log-probabilities of each datum at all its positions; 0 where they were not computed. */
function spread({ lengths, computed }: TrainingWork, values: readonly (readonly number[])[]): number[][] {
  return lengths.map((length, place) => {
    const own = values[place] ?? []
    const at = computed[place]
    if (!at) return [...own]
    const all = new Array<number>(length).fill(0)
    for (const [index, position] of at.entries()) all[position] = own[index]!
    return all
  })
}

/** The answer to a client's request for training. */
export function trainingOutput(work: TrainingWork, { data }: TrainingRequest, answer: Record<string, unknown>): Buffer {
  const logprobs = spread(work, answer.log_probabilities as number[][])
  const loss = work.command === 'forward' ? weightedLoss(logprobs, data) : Number(answer.loss)
  const metrics = {
    'loss:sum': loss,
    ...(typeof answer.clipped_share === 'number' && { 'clipped_share:mean': answer.clipped_share }),
  }
  return writeTrainingOutput({ logprobs }, metrics, data.length)
}

/** The cross entropy of what was computed without gradients. */
function weightedLoss(logprobs: readonly (readonly number[])[], data: TrainingRequest['data']): number {
  return data.reduce((sum, { inputs }, place) => {
    const weights = inputs.get('weights')?.values
    return sum - logprobs[place]!.reduce((part, value, at) => part + value * (weights?.[at] ?? 1), 0)
  }, 0)
}

export const otherOptimizer = (type: string): ApiError =>
  new ApiError('parameter_not_supported', `There is no optimizer '${type.slice(0, 100)}' here. There is 'adamw'.`)
