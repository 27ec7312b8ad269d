import { seededRandom } from '../support/random.ts'

/** Random source of one case, from its number and the run's seed, so that a single case can be repeated. */
export interface Draw {
  /** From 0 (inclusive) to 1 (exclusive). */
  next(): number
  /** An integer, both ends included. */
  int(low: number, high: number): number
  chance(share: number): boolean
  pick<T>(values: readonly T[]): T
}

export function draw(seed: number, number: number): Draw {
  const next = seededRandom(Math.imul(seed, 0x9e3779b1) ^ Math.imul(number + 1, 0x85ebca6b))
  const int = (low: number, high: number) => low + Math.floor(next() * (high - low + 1))
  return { next, int, chance: (share) => next() < share, pick: (values) => values[int(0, values.length - 1)]! }
}
