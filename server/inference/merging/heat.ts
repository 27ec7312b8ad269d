// How much an adapter is asked for just now.

/** A count that halves in every `halfLife_ms` in which nothing is added. */
export interface Heat {
  add(amount: number): void
  value(): number
}

export function createHeat(halfLife_ms: number, now: () => number = performance.now.bind(performance)): Heat {
  let amount = 0
  let at = now()
  const value = () => amount * 2 ** ((at - now()) / halfLife_ms)
  return {
    value,
    add(more) {
      amount = value() + more
      at = now()
    },
  }
}
