// Guessing the next tokens by looking the last few up in what has been read and written already ("prompt look-up",
// Saxena 2023). A guess is checked by the model in the same step, so it changes how fast an answer comes but not what
// it says.

// How many tokens must have stood together before: many as long as no guess was right, since on a CPU a wrong guess
// costs as much as writing three or four; few while guesses are right.
const doubtful = [4] as const
const confident = [4, 3, 2] as const
// What the library's kernels take at once: docs/performance.md has what steps cost. With the token before them, guesses
// make a multiple of it.
const columns = 4
const guessFirst = 7
const guessLeast = 3
export const guessMax = 15
/**
 * So many guesses in a row have to be wholly right before longer ones are made: the end of what is repeated is where a
 * guess is lost.
 */
const hitsToGrow = 2
// After this many wrong guesses in a row the model is left alone for a while.
const missesMax = 3
const pauseFirst = 16
const pauseMax = 256

/** How many tokens to guess after a prompt that makes `tokens` tokens of a step: the columns are filled up. */
export const fillUp = (tokens: number) => guessLeast + ((columns - ((tokens + guessLeast) % columns)) % columns)

export type Speculation = {
  /**
   * Tokens that may come after `tokens` (prompt and answer so far); empty where there is nothing to go by. At most
   * `max`.
   */
  guess(tokens: readonly number[], max: number): number[]
  /** How many of the guessed tokens were right. */
  checked(guessed: number, right: number): void
}

/** `endsAt` tells the tokens that end an answer: what came after one elsewhere is not guessed. */
export function createSpeculation(endsAt: (token: number) => boolean): Speculation {
  let length = guessFirst
  let hits = 0
  let isConfident = false
  let misses = 0
  let pause = pauseFirst
  let skip = 0
  return {
    guess(tokens, max) {
      if (skip > 0) {
        skip--
        return []
      }
      const at = find(tokens, isConfident ? confident : doubtful)
      if (at < 0) return []
      const guessed = tokens.slice(at, at + Math.min(length, max))
      const end = guessed.findIndex(endsAt)
      return end < 0 ? guessed : guessed.slice(0, end)
    },
    checked(guessed, right) {
      // Half right pays for the rows that were computed in vain.
      isConfident = right * 2 >= guessed
      hits = right === guessed ? hits + 1 : 0
      if (isConfident) {
        misses = 0
        pause = pauseFirst
        if (hits >= hitsToGrow) length = Math.min(guessMax, length + columns)
        return
      }
      length = guessLeast
      if (++misses < missesMax) return
      misses = 0
      skip = pause
      pause = Math.min(pauseMax, pause * 2)
    },
  }
}

/** Where the last occurrence of the final tokens, of as many as one of `counts` says, goes on; or -1. */
function find(tokens: readonly number[], counts: readonly number[]): number {
  for (const count of counts) {
    const from = tokens.length - count
    for (let at = from - 1; at >= 0; at--) {
      let same = 0
      while (same < count && tokens[at + same] === tokens[from + same]) same++
      if (same === count) return at + count
    }
  }
  return -1
}
