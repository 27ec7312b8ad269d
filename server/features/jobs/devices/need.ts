// What a job is predicted to take of a device's memory, from the sizes of its base and run.
import type { ResolvedConfig } from '../../../../contract/fine-tuning.ts'
import type { Hub } from '../../hub/index.ts'
import type { Need } from './plan.ts'

/** The smallest limit of a pass of a run on a GPU, unless a row is longer: limits_of of trainer/run/loop.py. */
const pass_tokens = 2048
/** A pass over a batch of very short rows. */
const short_tokens = 256

/** The trainer makes larger passes where there is more memory. */
export function needOf(
  hub: Pick<Hub, 'trainingBytes' | 'get'>,
  base_model_id: string,
  resolved: ResolvedConfig,
  device: 'cpu' | 'gpu',
): Need {
  const { lora_config, training_config } = resolved
  const answers = resolved.method_options.objective.value === 'reinforcement' ? passOfAnswers(resolved) : undefined
  const { tokens, learned } = answers ?? {
    tokens: Math.max(pass_tokens, Math.min(training_config.max_length.value, hub.get(base_model_id).context_length)),
    learned: Number.POSITIVE_INFINITY,
  }
  const megabytes = (devices: number, pass = tokens) => {
    const run = { rank: lora_config?.r.value ?? 0, tokens: pass, learned: Math.min(pass, learned), devices }
    const bytes = hub.trainingBytes(base_model_id, resolved.method.value, device, run)
    return bytes === undefined ? null : Math.round(bytes / 1e6)
  }
  const problem = unshareable(resolved, hub.get(base_model_id).merges_adapters)
  return {
    alone_mb: megabytes(1),
    least_mb: megabytes(1, short_tokens),
    shared: problem ? `Several devices cannot share ${problem}.` : (devices) => megabytes(devices)!,
  }
}

/** A prompt of usual length. */
const prompt_tokens = 256
/** Limits of trainer/data/packing.py, which passes of answers keep to unless one answer is longer. */
const limits = { tokens: 8192, learned: 2048 }

/** The largest pass over graded answers: as many as its limits allow, each prompt computed once for its group. */
function passOfAnswers({ method_options, training_config }: ResolvedConfig) {
  const longest = method_options.max_tokens.value
  const group_size = method_options.group_size.value
  const room = Math.floor(Math.min(limits.learned / longest, limits.tokens / (longest + prompt_tokens)))
  const answers = Math.min(Math.max(1, room), training_config.batch_size.value * group_size)
  const learned = answers * longest
  return { tokens: learned + Math.ceil(answers / group_size) * prompt_tokens, learned }
}

/** The same of adapters that a client trains step by step, on one device. */
export function needOfRun(
  hub: Pick<Hub, 'trainingBytes'>,
  base_model_id: string,
  rank: number,
  device: 'cpu' | 'gpu',
): Need {
  const megabytes = (tokens: number) => {
    const bytes = hub.trainingBytes(base_model_id, 'lora', device, { rank, tokens, learned: tokens, devices: 1 })
    return bytes === undefined ? null : Math.round(bytes / 1e6)
  }
  return {
    alone_mb: megabytes(pass_tokens),
    least_mb: megabytes(short_tokens),
    shared: 'Several devices cannot share a training of single steps.',
  }
}

/** What devices cannot share of a training: require_shareable of trainer/model/sharded.py. */
function unshareable({ method, method_options, lora_config, projector }: ResolvedConfig, merges: boolean) {
  if (method.value !== 'lora') return `a training by ${method.value}`
  if (method_options.objective.value === 'reinforcement') return 'a training on scores of graders'
  if (method_options.objective.value !== 'sft') return 'a training on preferences'
  if (lora_config?.experts.value) return 'adapters of experts'
  if (projector?.value) return 'the training of a projector'
  return merges ? 'a training whose result is merged into its base' : undefined
}
