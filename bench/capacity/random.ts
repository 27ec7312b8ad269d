// The distributions that the simulation draws from.

/** Numbers from 0 (inclusive) to 1 (exclusive). */
export type Random = () => number

export const exponential = (next: Random, mean: number): number => -mean * Math.log(1 - next())

/** Whole numbers from 1 on, each further one with the same probability. */
export const geometric = (next: Random, mean: number): number =>
  mean <= 1 ? 1 : 1 + Math.floor(Math.log(1 - next()) / Math.log(1 - 1 / mean))

export function normal(next: Random): number {
  return Math.sqrt(-2 * Math.log(1 - next())) * Math.cos(2 * Math.PI * next())
}

/** With the given mean and coefficient of variation (standard deviation divided by mean). */
export function lognormal(next: Random, mean: number, cv: number): number {
  const variance = Math.log(1 + cv * cv)
  return mean * Math.exp(Math.sqrt(variance) * normal(next) - variance / 2)
}

/** A Poisson number; above a mean of 50 the normal distribution is near enough. */
export function poisson(next: Random, mean: number): number {
  if (mean > 50) return Math.max(0, Math.round(mean + Math.sqrt(mean) * normal(next)))
  const limit = Math.exp(-mean)
  let count = 0
  for (let product = next(); product > limit; product *= next()) count++
  return count
}

/** Zipf's law: the share of each of n ranks, where rank r has r^-exponent times that of the first. */
export function zipf(n: number, exponent: number): number[] {
  const weights = Array.from({ length: n }, (_, index) => (index + 1) ** -exponent)
  const sum = weights.reduce((total, weight) => total + weight, 0)
  return weights.map((weight) => weight / sum)
}

/** Draws indices with the given shares in constant time (Walker's alias method). */
export function sampler(shares: readonly number[]): (next: Random) => number {
  const n = shares.length
  const sum = shares.reduce((total, share) => total + share, 0)
  const scaled = shares.map((share) => (share * n) / sum)
  const alias = new Int32Array(n)
  const small: number[] = []
  const large: number[] = []
  scaled.forEach((share, index) => {
    if (share < 1) small.push(index)
    else large.push(index)
  })
  while (small.length > 0 && large.length > 0) {
    const [low, high] = [small.pop()!, large.at(-1)!]
    alias[low] = high
    scaled[high]! -= 1 - scaled[low]!
    if (scaled[high]! < 1) small.push(large.pop()!)
  }
  for (const index of [...small, ...large]) scaled[index] = 1
  return (next) => {
    const index = Math.floor(next() * n)
    return next() < scaled[index]! ? index : alias[index]!
  }
}

/** The value below which this share of the sorted values lies. */
export function quantile(sorted: ArrayLike<number>, share: number): number {
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] ?? 0
}
