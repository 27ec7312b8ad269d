// What a step costs with so many tokens, relative to the others, learned from the steps. Only the relation matters for
// drafts: the time itself grows with the context and with what else the machine does.

export interface StepCosts {
  /** Time of a step with `tokens` tokens, in units that are the same for all. */
  cost(tokens: number): number
  /** Whether a step with `tokens` tokens was measured lately. */
  isFresh(tokens: number): boolean
  record(tokens: number, ms: number): void
}

// Until it is measured, a further token is expected to cost so much of a step with one.
const expectedSlope = 0.22
const tokensMax = 64
// An observation that is so many steps old may no longer hold.
const stepsMax = 2000
const stepsFresh = 64
const rateMin = 0.05
const levelRate = 0.2
// A step that something else interrupted counts as at most this much longer than expected.
const outlier = 2

const expectedCost = (tokens: number) => 1 + expectedSlope * (tokens - 1)

export function createStepCosts(): StepCosts {
  const measured = new Float64Array(tokensMax + 1)
  const observations = new Uint32Array(tokensMax + 1)
  const lastStep = new Float64Array(tokensMax + 1).fill(-Infinity)
  let steps = 0
  /** Milliseconds of a unit, at present. */
  let level = 0

  const isKnown = (tokens: number) => steps - lastStep[tokens]! <= stepsMax
  const nearestMeasured = (from: number, step: number) => {
    let tokens = from
    while (tokens >= 1 && tokens <= tokensMax && !isKnown(tokens)) tokens += step
    return tokens >= 1 && tokens <= tokensMax ? tokens : null
  }
  const cost = (tokens: number): number => {
    const below = nearestMeasured(Math.min(tokens, tokensMax), -1)
    if (below === tokens) return measured[tokens]!
    const above = nearestMeasured(tokens, 1)
    if (below !== null && above !== null) {
      const part = (tokens - below) / (above - below)
      return measured[below]! * (1 - part) + measured[above]! * part
    }
    const nearest = below ?? above
    return nearest === null ? expectedCost(tokens) : (measured[nearest]! * expectedCost(tokens)) / expectedCost(nearest)
  }
  return {
    cost,
    isFresh: (tokens) => tokens > tokensMax || steps - lastStep[tokens]! <= stepsFresh,
    record(tokens, ms) {
      if (tokens > tokensMax || tokens < 1) return
      steps++
      const expected = cost(tokens)
      level ||= ms / expected
      const units = Math.min(ms / level, expected * outlier)
      if (!isKnown(tokens)) observations[tokens] = 0
      const rate = Math.max(rateMin, 1 / ++observations[tokens]!)
      measured[tokens] = observations[tokens] === 1 ? units : measured[tokens]! + rate * (units - measured[tokens]!)
      lastStep[tokens] = steps
      level += levelRate * (ms / measured[tokens]! - level)
    },
  }
}
