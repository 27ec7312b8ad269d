// How often the model agrees with a proposed token, by where the proposal comes from and how sure its source is.
// Learned from every token of an answer for which a source had a proposal, drafted or not, so that a source that was
// wrong for a while is noticed when it is right again.

export type Source = 'trained' | 'recent' | 'prompt'
export interface Acceptance {
  /** The bucket of a proposal after a match of so many tokens. `share` of `places` agree on it. */
  bucket(source: Source, matched: number, share: number, places: number): number
  /** From 0 to 1. */
  probability(bucket: number): number
  record(bucket: number, accepted: boolean): void
}

const sources: readonly Source[] = ['trained', 'recent', 'prompt']
const matchedMax = 16
const shareSteps = [0.5, 0.8, 0.95, 1]
const placesSteps = [1, 4]
// Observations that the expectation before any is worth, and what an older one loses with each new one.
const expectationWeight = 4
const memory = 0.98

export function createAcceptance(): Acceptance {
  const perMatch = shareSteps.length * (placesSteps.length + 1)
  const buckets = sources.length * matchedMax * perMatch
  const tried = new Float32Array(buckets)
  const accepted = new Float32Array(buckets)
  const expected = (bucket: number) => {
    const matched = Math.floor((bucket % (matchedMax * perMatch)) / perMatch) + 1
    const share = shareSteps[Math.floor(bucket / (placesSteps.length + 1)) % shareSteps.length]!
    return share * Math.min(0.9, 0.25 + 0.1 * matched)
  }
  return {
    bucket(source, matched, share, places) {
      const match = sources.indexOf(source) * matchedMax + Math.min(matched, matchedMax) - 1
      const shareStep = shareSteps.findIndex((most) => share <= most)
      const placesStep = placesSteps.filter((most) => places > most).length
      return (match * shareSteps.length + shareStep) * (placesSteps.length + 1) + placesStep
    },
    probability: (bucket) =>
      (accepted[bucket]! + expected(bucket) * expectationWeight) / (tried[bucket]! + expectationWeight),
    record(bucket, wasAccepted) {
      tried[bucket] = tried[bucket]! * memory + 1
      accepted[bucket] = accepted[bucket]! * memory + (wasAccepted ? 1 : 0)
    },
  }
}
