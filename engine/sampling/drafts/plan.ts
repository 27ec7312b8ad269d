// Chooses how long the drafts of a step are: the length with the most expected tokens per time. All sequences get the
// same length, as the library computes sequences with different numbers of tokens one group after the other.

/** Draft tokens in one step, of all sequences together. */
export const draftTokensPerStep = 40
// Less expected gain is not worth a wrong expectation.
const gainMin = 1.03
// With drafts of this length that the model always agrees with, it must pay at all.
const shortDraft = 3

/** Time of a step with so many tokens, in any unit. */
type Cost = (tokens: number) => number

/** The longest draft to propose for each of `sequences`; 0 where even the best drafts would not pay. */
export function draftTokensFor(sequences: number, cost: Cost): number {
  const most = Math.floor(draftTokensPerStep / sequences)
  const length = Math.min(shortDraft, most)
  return (1 + length) / cost(sequences * (1 + length)) > gainMin / cost(sequences) ? most : 0
}

/**
 * How many draft tokens each of the sequences gets. `reaches`: for each sequence, how probably the model agrees with
 * its proposal up to each token, descending.
 */
export function planDrafts(reaches: readonly (readonly number[])[], cost: Cost): number {
  const sequences = reaches.length
  const longest = Math.max(...reaches.map(({ length }) => length))
  let best = gainMin / cost(sequences)
  let chosen = 0
  let expected = sequences
  for (let length = 1; length <= longest; length++) {
    for (const reach of reaches) expected += reach[length - 1] ?? 0
    const speed = expected / sequences / cost(sequences * (1 + length))
    if (speed <= best) continue
    best = speed
    chosen = length
  }
  return chosen
}
