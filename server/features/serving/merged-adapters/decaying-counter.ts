/** Exponentially decaying counter: measures an adapter's recent demand. */
export interface DecayingCounter {
  add(amount: number): void
  value(): number
  /** Keeps the counter from expiring while a request runs whose amount is added at its end. */
  touch(): void
  /** Whether the value is below 1 and there was no `add` or `touch` for longer than a request takes. */
  isExpired(): boolean
}

/** Longer than a request takes. */
const expiry_ms = 600_000

/** Counter that halves every `halfLife_ms`. */
export function createDecayingCounter(
  halfLife_ms: number,
  now: () => number = performance.now.bind(performance),
): DecayingCounter {
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
    touch() {
      touched = now()
    },
    isExpired: () => value() < 1 && now() - touched > expiry_ms,
  }
}
