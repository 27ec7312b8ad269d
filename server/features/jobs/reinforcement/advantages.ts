// How much better than expected each answer of a group was, and what its tokens weigh in the loss.
import type { PolicyLoss } from '../../../../contract/hyperparameters.ts'

/** Scores that differ by less are the same. */
const least_deviation = 1e-6

const mean = (values: readonly number[]) => values.reduce((sum, value) => sum + value, 0) / values.length

/** The standard deviation of the values as a whole. */
export function deviation(values: readonly number[]): number {
  const center = mean(values)
  return Math.sqrt(mean(values.map((value) => (value - center) ** 2)))
}

/** Whether the scores of a group teach nothing: fewer than two, or all the same. */
export const isEqual = (scores: readonly number[]) => scores.length < 2 || deviation(scores) < least_deviation

/**
 * The advantages of the answers to one prompt, from their scores.
 *
 * `dr_grpo`: the score less the mean (Liu et al., "Understanding R1-Zero-Like Training", 2025, arXiv 2503.20783).
 * `rloo`: less the mean of the others (Ahmadian et al., "Back to Basics", 2024, arXiv 2402.14740).
 * Others: less the mean, over the standard deviation, as GRPO (Shao et al., "DeepSeekMath", 2024, arXiv 2402.03300).
 */
export function advantagesOf(scores: readonly number[], loss: PolicyLoss): number[] {
  const center = mean(scores)
  const centered = scores.map((score) => score - center)
  if (loss === 'dr_grpo') return centered
  if (loss === 'rloo') return centered.map((value) => (value * scores.length) / Math.max(1, scores.length - 1))
  const spread = deviation(scores) + least_deviation
  return centered.map((value) => value / spread)
}

interface Batch {
  answers: number
  tokens: number
  max_tokens: number
}

/**
 * What the loss of each token of an answer is multiplied with, so that their sum is the loss of the batch.
 *
 * `grpo`, `gspo`: the mean over answers of their means (arXiv 2402.03300, 2507.18071). `dapo`, `cispo`: the mean over
 * all tokens (Yu et al., "DAPO", 2025, arXiv 2503.14476; MiniMax-M1, 2025, arXiv 2506.13585). `dr_grpo`: the sum over
 * the longest answer that there may be (arXiv 2503.20783). `rloo`: the mean over answers of their sums
 * (arXiv 2402.14740).
 */
export function tokenWeight(loss: PolicyLoss, tokens: number, batch: Batch): number {
  if (loss === 'grpo' || loss === 'gspo') return 1 / (batch.answers * tokens)
  if (loss === 'dr_grpo') return 1 / (batch.answers * batch.max_tokens)
  if (loss === 'rloo') return 1 / batch.answers
  return 1 / batch.tokens
}

interface TrainerLoss {
  /** Its name in trainer/policy/losses.py. */
  loss: 'ppo' | 'gspo' | 'cispo' | 'reinforce'
  low: number
  high: number
}

/** The loss that the trainer computes, with the bounds of its paper. */
export const trainerLosses: Record<PolicyLoss, TrainerLoss> = {
  dapo: { loss: 'ppo', low: 0.2, high: 0.28 },
  grpo: { loss: 'ppo', low: 0.2, high: 0.2 },
  dr_grpo: { loss: 'ppo', low: 0.2, high: 0.2 },
  gspo: { loss: 'gspo', low: 3e-4, high: 4e-4 },
  cispo: { loss: 'cispo', low: 1, high: 4 },
  rloo: { loss: 'reinforce', low: 1, high: 1 },
}
