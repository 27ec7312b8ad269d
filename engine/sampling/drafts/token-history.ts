// Tokens in the order in which they came, searchable for the last few of a text: prompt lookup ("prompt lookup
// decoding", Saxena 2023) in a prompt and its answer so far, and the same in recent answers.
import type { Continuation } from './answer-index.ts'

export interface TokenHistory {
  append(token: number): void
  /** The last tokens. */
  end(count: number): number[]
  length(): number
  /**
   * What followed the longest match of the end of `tail`, up to `matchMax` tokens, and how long the match was. Null if
   * not even the last token occurs earlier.
   */
  continuation(tail: readonly number[]): (Continuation & { matched: number }) | null
}

export const matchMax = 8
// Earlier places of the last token that are compared, the latest first.
const placesMax = 64

/** Begins with `tokens`, which it takes over. */
export function createTokenHistory(tokens: number[] = []): TokenHistory {
  // Filled by the first search: most texts are never searched.
  /** For each place, the one before it with the same token, or -1. */
  const previous: number[] = []
  const latest = new Map<number, number>()

  const matchedAt = (place: number, tail: readonly number[]): number => {
    const last = tail.length - 1
    const most = Math.min(matchMax, tail.length, place + 1)
    let matched = 1
    while (matched < most && tokens[place - matched] === tail[last - matched]) matched++
    return matched
  }

  return {
    append: (token) => void tokens.push(token),
    end: (count) => tokens.slice(-count),
    length: () => tokens.length,
    continuation(tail) {
      // Nothing follows the last one.
      for (let place = previous.length; place < tokens.length - 1; place++) {
        previous.push(latest.get(tokens[place]!) ?? -1)
        latest.set(tokens[place]!, place)
      }
      let token = -1
      let matched = 0
      let places = 0
      let agreeing = 0
      let place = latest.get(tail.at(-1)!) ?? -1
      for (let looked = 0; place >= 0 && looked < placesMax; looked++) {
        const length = matchedAt(place, tail)
        const next = tokens[place + 1]!
        if (length > matched) {
          token = next
          matched = length
          places = 0
          agreeing = 0
        }
        if (length === matched) {
          places++
          if (next === token) agreeing++
        }
        place = previous[place]!
      }
      return matched === 0 ? null : { token, share: agreeing / places, places, matched }
    },
  }
}
