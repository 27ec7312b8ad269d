// The most that a job can take that learns from graders: how long its answers become is not known before.
import type { ResolvedConfig } from '../../../../contract/fine-tuning.ts'

/** `learned`, `held_out`: numbers of prompts. */
export function boundsOf(config: ResolvedConfig, { learned, held_out }: { learned: number; held_out: number }) {
  const { training_config, method_options, evaluation_config } = config
  const { group_size, max_tokens, refill_rounds, evaluation_samples } = method_options
  const batch_size = training_config.batch_size.value
  const steps_per_epoch = Math.ceil(learned / batch_size)
  const steps = steps_per_epoch * training_config.epochs.value
  const answers = steps * batch_size * group_size.value * (1 + refill_rounds.value)
  const every = evaluation_config.every_steps.value ?? steps_per_epoch
  // Before the first step, every so many, and after the last.
  const evaluations = 1 + Math.ceil(steps / every)
  const evaluated = evaluations * held_out * evaluation_samples.value
  return { steps, generated_tokens_max: (answers + evaluated) * max_tokens.value }
}
