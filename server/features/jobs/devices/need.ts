// What a job is predicted to take of a device's memory, from the sizes of its base and run.
import type { ResolvedConfig } from '../../../../contract/fine-tuning.ts'
import type { Hub } from '../../hub/index.ts'
import type { Need } from './plan.ts'

/** The smallest pass that a run on a GPU makes, unless a row is longer: limits_of of trainer/run/loop.py. */
const least_tokens = 2048

/** The least that a run takes: the trainer makes larger passes where there is more memory. */
export function needOf(
  hub: Pick<Hub, 'trainingBytes' | 'get'>,
  base_model_id: string,
  { method, lora_config, training_config }: ResolvedConfig,
  device: 'cpu' | 'gpu',
): Need {
  const tokens = Math.max(
    least_tokens,
    Math.min(training_config.max_length.value, hub.get(base_model_id).context_length),
  )
  const run = { rank: lora_config?.r.value ?? 0, tokens, learned: tokens }
  const bytes = hub.trainingBytes(base_model_id, method.value, device, run)
  return {
    alone_mb: bytes === undefined ? null : Math.round(bytes / 1e6),
    shared: 'One training over several devices is not supported.',
  }
}
