// Index of the answers that a model was trained on: which token followed these tokens there, and how often. A suffix
// array finds every place where the last tokens of an answer occur, in a few binary searches.

import { type Drafts, separator } from '../../models/draft-file.ts'

/** `share`: of the places that were looked at, those where `token` follows. `places`: how many there are. */
export interface Continuation {
  token: number
  share: number
  places: number
}

// Places that are looked at. The order of the suffixes spreads them evenly over what follows.
const samplesMax = 32

/** The likeliest token after the last `length` tokens of `tail`; null if they are in no answer. */
export function continuation(answers: Drafts, tail: readonly number[], length: number): Continuation | null {
  const { tokens, suffixes } = answers
  const from = tail.length - length
  const first = firstSuffix(answers, tail, from, length, false)
  const places = firstSuffix(answers, tail, from, length, true) - first
  if (places === 0) return null
  const samples = Math.min(places, samplesMax)
  let best = -1
  let bestCount = 0
  let current = -1
  let count = 0
  for (let sample = 0; sample < samples; sample++) {
    const token = tokens[suffixes[first + Math.floor((sample * places) / samples)]! + length] ?? separator
    count = token === current ? count + 1 : 1
    current = token
    if (count > bestCount) {
      best = token
      bestCount = count
    }
  }
  return best === separator ? null : { token: best, share: bestCount / samples, places }
}

/**
 * Index of the first suffix that begins with `length` tokens of `tail` from `from` on, or (`after`) comes after these.
 */
function firstSuffix(
  { tokens, suffixes }: Drafts,
  tail: readonly number[],
  from: number,
  length: number,
  after: boolean,
): number {
  let low = 0
  let high = suffixes.length
  while (low < high) {
    const middle = (low + high) >> 1
    const suffix = suffixes[middle]!
    let at = 0
    while (at < length && tokens[suffix + at] === tail[from + at]) at++
    const isBefore = at === length ? after : (tokens[suffix + at] ?? -1) < tail[from + at]!
    if (isBefore) low = middle + 1
    else high = middle
  }
  return low
}
