// Chooses how much of each proposal a step computes: the lengths with the most expected tokens per time.

/** Draft tokens in one step, of all sequences together. */
export const draftTokensPerStep = 40
// Less expected gain is not worth a wrong expectation.
const gainMin = 1.03
// Further tokens over which their cost is judged before there are proposals.
const lookAhead = 12
const reachWorthMin = 0.1

/**
 * The least `reach` of a token that may be worth computing beside `sequences` others; 1 or more: none is. `cost`: time of
 * a step with so many tokens, in any unit.
 */
export function reachWorth(sequences: number, cost: (tokens: number) => number): number {
  const needed = (sequences * gainMin * cost(sequences + lookAhead)) / cost(sequences) - sequences
  return Math.max(reachWorthMin, needed / lookAhead)
}

/**
 * How many tokens of each proposal to compute beside `sequences` tokens that are computed anyway. `reaches`: how probably
 * the model agrees up to each token, descending.
 */
export function planDrafts(
  reaches: readonly (readonly number[])[],
  sequences: number,
  cost: (tokens: number) => number,
): number[] {
  const lengths = reaches.map(() => 0)
  const ordered = reaches
    .flatMap((reach, index) => reach.map((probability) => ({ probability, index })))
    .sort((a, b) => b.probability - a.probability)
    .slice(0, draftTokensPerStep)
  let best = (sequences / cost(sequences)) * gainMin
  let taken = 0
  let expected = sequences
  for (const [at, { probability }] of ordered.entries()) {
    expected += probability
    const speed = expected / cost(sequences + at + 1)
    if (speed <= best) continue
    best = speed
    taken = at + 1
  }
  for (const { index } of ordered.slice(0, taken)) lengths[index]!++
  return lengths
}
