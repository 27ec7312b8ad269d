// The most that a job can take that learns from graders: how long its answers become is not known before.
import type { Environment } from '../../../../contract/environments.ts'
import type { ResolvedConfig } from '../../../../contract/fine-tuning.ts'

type Options = ResolvedConfig['method_options']

export const environmentsOf = ({ environments }: Pick<Options, 'environments'>): Environment[] =>
  environments.value as unknown as Environment[]

/** The most tokens that the model may write for one score: an answer, or those of an episode. */
export function answerTokensMax(options: Pick<Options, 'max_tokens' | 'environments'>): number {
  const max_tokens = options.max_tokens.value
  const episodes = environmentsOf(options).map(({ turns_max, tokens_max }) =>
    Math.min(turns_max * max_tokens, tokens_max),
  )
  return Math.max(max_tokens, ...episodes)
}

/** `learned`, `held_out`: numbers of prompts. */
export function boundsOf(config: ResolvedConfig, { learned, held_out }: { learned: number; held_out: number }) {
  const { training_config, method_options, evaluation_config } = config
  const { group_size, refill_rounds, evaluation_samples } = method_options
  const batch_size = training_config.batch_size.value
  const steps_per_epoch = Math.ceil(learned / batch_size)
  const steps = steps_per_epoch * training_config.epochs.value
  const answers = steps * batch_size * group_size.value * (1 + refill_rounds.value)
  const every = evaluation_config.every_steps.value ?? steps_per_epoch
  // Before the first step, every so many, and after the last.
  const evaluations = 1 + Math.ceil(steps / every)
  const evaluated = evaluations * held_out * evaluation_samples.value
  return { steps, generated_tokens_max: (answers + evaluated) * answerTokensMax(method_options) }
}
