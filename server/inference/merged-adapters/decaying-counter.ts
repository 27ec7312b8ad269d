// How much an adapter is asked for just now.

/** A count that halves in every `halfLife_ms` in which nothing is added. */
export interface Heat {
  add(amount: number): void
  value(): number
  /** Something is under way that will be added when it ends. */
  expect(): void
  /** Whether next to nothing is left of it, and nothing has been expected or added for longer than answers take. */
  isSpent(): boolean
}

/** No answer takes longer than this, as far as its heat is concerned. */
const answer_ms = 600_000

export function createHeat(halfLife_ms: number, now: () => number = performance.now.bind(performance)): Heat {
  let amount = 0
  let at = now()
  let touched = at
  const value = () => amount * 2 ** ((at - now()) / halfLife_ms)
  return {
    value,
    add(more) {
      amount = value() + more
      at = now()
      touched = at
    },
    expect() {
      touched = now()
    },
    isSpent: () => value() < 1 && now() - touched > answer_ms,
  }
}
