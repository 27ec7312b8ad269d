// How far a model has moved from its base.

/**
 * The Kullback-Leibler divergence of a sampled token, in nats: the mean of the estimator k3 (Schulman, "Approximating
 * KL Divergence", 2020), which has little variance and is never negative. Both have the log-probabilities of the tokens
 * of each answer, which the tuned model sampled. Null without tokens.
 */
export function divergence(tuned: readonly number[][], base: readonly number[][]): number | null {
  let sum = 0
  let tokens = 0
  for (const [index, values] of tuned.entries())
    for (const [place, value] of values.entries()) {
      const log_ratio = base[index]![place]! - value
      sum += Math.exp(log_ratio) - 1 - log_ratio
      tokens++
    }
  return tokens === 0 ? null : sum / tokens
}
