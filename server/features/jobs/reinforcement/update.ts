// The optimizer steps of a step, one or several, and what is measured of them.
import type { ResolvedConfig } from '../../../../contract/fine-tuning.ts'
import { trainerLosses } from './advantages.ts'
import { answerTokensMax } from './bounds.ts'
import type { PolicyTrainer } from './policy-trainer.ts'
import { dataOf, type GradedGroup, teachesNothing } from './rollouts.ts'

export type Update = Awaited<ReturnType<typeof update>>

export async function update(
  trainer: Pick<PolicyTrainer, 'logProbabilities' | 'forwardBackward' | 'optimStep'>,
  groups: readonly GradedGroup[],
  options: ResolvedConfig['method_options'],
  learning_rate: number,
) {
  const { policy_loss, clip_low, clip_high, importance_cap, updates_per_step } = options
  const learned = groups.filter((group) => !teachesNothing(group))
  const parts = divided(learned, updates_per_step.value).map((part) =>
    dataOf(part, policy_loss.value, answerTokensMax(options)),
  )
  const all = parts.flat()
  // Later parts are computed by weights that did not sample them.
  const old = parts.length > 1 ? await trainer.logProbabilities(all) : undefined
  const { loss, low, high } = trainerLosses[policy_loss.value]
  const lossOptions = {
    loss,
    low: clip_low.value ?? low,
    high: clip_high.value ?? high,
    truncation: importance_cap.value,
  }
  const sums = { loss: 0, clipped_share: 0, correction: 0, grad_norm: 0 }
  const gaps: number[] = []
  const entropies: number[] = []
  let place = 0
  for (const data of parts) {
    const given = data.map((datum, index) => ({ ...datum, ...(old && { old: old[place + index]! }) }))
    const computed = await trainer.forwardBackward(given, lossOptions)
    const { grad_norm } = await trainer.optimStep(learning_rate)
    sums.loss += computed.loss / parts.length
    sums.clipped_share += computed.clipped_share / parts.length
    sums.correction += computed.correction / parts.length
    sums.grad_norm += grad_norm / parts.length
    for (const [index, { sampled }] of data.entries()) {
      const before = old?.[place + index] ?? computed.log_probabilities[index]!
      for (const [at, value] of before.entries()) {
        gaps.push(Math.abs(value - sampled[at]!))
        entropies.push(-value)
      }
    }
    place += data.length
  }
  return {
    ...sums,
    learning_rate,
    ...(gaps.length > 0 && { probability_gap: mean(gaps), entropy: mean(entropies) }),
    tokens: all.reduce((sum, { ids }) => sum + ids.length, 0),
  }
}

const mean = (values: readonly number[]) => values.reduce((sum, value) => sum + value, 0) / values.length

/** In at most so many parts of about the same number; one where there is nothing. */
function divided<T>(values: readonly T[], parts: number): T[][] {
  const count = Math.max(1, Math.min(parts, values.length))
  return Array.from({ length: count }, (_, part) =>
    values.slice(Math.floor((part * values.length) / count), Math.floor(((part + 1) * values.length) / count)),
  )
}
