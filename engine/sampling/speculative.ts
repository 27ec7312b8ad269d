// Speculative decoding without a draft model: n-gram prompt lookup ("prompt lookup decoding", Saxena 2023). Searches
// the prompt and the answer so far for the last few tokens and proposes what followed them as a draft. The model
// verifies the draft in the same step, so it changes the speed of an answer but not its text.

// Lengths of the n-grams to search for. Long ones until a draft is accepted, as on a CPU a rejected draft costs as much
// as generating three or four tokens; shorter ones while drafts are accepted.
const cautiousNgrams = [4] as const
const confidentNgrams = [4, 3, 2] as const
// Tokens that the library's kernels compute at once (costs of steps: docs/performance.md). A draft and the token before
// it together fill a multiple of this.
const kernelColumns = 4
const draftTokensFirst = 7
const draftTokensMin = 3
export const draftTokensMax = 15
// Drafts get longer after this many fully accepted ones in a row.
const hitsToGrow = 2
// After this many rejected drafts in a row, no drafts are made for some steps, twice as many each time.
const missesMax = 3
const pauseStepsFirst = 16
const pauseStepsMax = 256

/** Draft length after the last `tokens` tokens of a prompt in the batch: fills the kernel's columns. */
export const draftTokensAfterPrompt = (tokens: number) =>
  draftTokensMin + ((kernelColumns - ((tokens + draftTokensMin) % kernelColumns)) % kernelColumns)

export type Drafter = {
  /** At most `max` draft tokens after `tokens` (prompt and answer so far); empty without a match. */
  draft(tokens: readonly number[], max: number): number[]
  /** Reports how many of the draft tokens the model accepted. */
  recordResult(drafted: number, accepted: number): void
}

/** `endsAt`: whether a token ends an answer. A draft stops before such a token. */
export function createDrafter(endsAt: (token: number) => boolean): Drafter {
  let length = draftTokensFirst
  let hits = 0
  let isConfident = false
  let misses = 0
  let pauseSteps = pauseStepsFirst
  let skip = 0
  return {
    draft(tokens, max) {
      if (skip > 0) {
        skip--
        return []
      }
      const at = findContinuation(tokens, isConfident ? confidentNgrams : cautiousNgrams)
      if (at < 0) return []
      const draft = tokens.slice(at, at + Math.min(length, max))
      const end = draft.findIndex(endsAt)
      return end < 0 ? draft : draft.slice(0, end)
    },
    recordResult(drafted, accepted) {
      // A draft pays off if at least half of it is accepted.
      isConfident = accepted * 2 >= drafted
      hits = accepted === drafted ? hits + 1 : 0
      if (isConfident) {
        misses = 0
        pauseSteps = pauseStepsFirst
        if (hits >= hitsToGrow) length = Math.min(draftTokensMax, length + kernelColumns)
        return
      }
      length = draftTokensMin
      if (++misses < missesMax) return
      misses = 0
      skip = pauseSteps
      pauseSteps = Math.min(pauseStepsMax, pauseSteps * 2)
    },
  }
}

/**
 * Index of what followed the latest earlier occurrence of the last tokens, or -1. Tries n-grams of each length in turn.
 */
function findContinuation(tokens: readonly number[], lengths: readonly number[]): number {
  for (const count of lengths) {
    const from = tokens.length - count
    for (let at = from - 1; at >= 0; at--) {
      let same = 0
      while (same < count && tokens[at + same] === tokens[from + same]) same++
      if (same === count) return at + count
    }
  }
  return -1
}
