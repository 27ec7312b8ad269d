// Closed forms that the simulation is checked against.

/** Erlang's C: the probability that an arrival at M/M/k waits. `load`: arrivals times service time, below k. */
export function erlangC(servers: number, load: number): number {
  if (load >= servers) return 1
  // Erlang's B by its recursion, which does not overflow.
  let blocked = 1
  for (let n = 1; n <= servers; n++) blocked = (load * blocked) / (n + load * blocked)
  return blocked / (1 - (load / servers) * (1 - blocked))
}

/** Mean wait at M/G/k by Allen and Cunneen: exact for M/M/k and for M/G/1, near it otherwise. */
export function meanWait(servers: number, arrivals: number, service: number, cv: number): number {
  const load = arrivals * service
  if (load >= servers) return Number.POSITIVE_INFINITY
  return ((erlangC(servers, load) * service) / (servers - load)) * ((1 + cv * cv) / 2)
}

/** The wait that a share of arrivals at M/M/k does not exceed. */
export function waitQuantile(servers: number, arrivals: number, service: number, share: number): number {
  const load = arrivals * service
  if (load >= servers) return Number.POSITIVE_INFINITY
  const waits = erlangC(servers, load)
  return waits <= 1 - share ? 0 : (Math.log(waits / (1 - share)) * service) / (servers - load)
}

/** The share of requests that the first n of Zipf's ranks have, by the integral instead of the sum. */
export function zipfMass(n: number, ranks: number, exponent: number): number {
  const harmonic = (to: number) =>
    exponent === 1
      ? Math.log(to) + 0.5772156649 + 1 / (2 * to)
      : (to ** (1 - exponent) - 1) / (1 - exponent) + (1 + to ** -exponent) / 2
  return harmonic(n) / harmonic(ranks)
}

/**
 * The hit rate of a cache that drops the least recently used of its entries, by Che's approximation. `rates`: requests
 * of each entry a second.
 */
export function lruHitRate(rates: readonly number[], slots: number): number {
  const total = rates.reduce((sum, rate) => sum + rate, 0)
  if (slots >= rates.length || total === 0) return 1
  const held = (time: number) => rates.reduce((sum, rate) => sum + 1 - Math.exp(-rate * time), 0)
  let [low, high] = [0, 1]
  while (held(high) < slots) high *= 2
  for (let round = 0; round < 60; round++) {
    const middle = (low + high) / 2
    if (held(middle) < slots) low = middle
    else high = middle
  }
  return rates.reduce((sum, rate) => sum + (rate / total) * (1 - Math.exp(-rate * low)), 0)
}

/**
 * Requests in progress at a server that works on all of them at once and whose speed depends on how many there are:
 * the stationary distribution, which depends on the mean of the work alone (processor sharing is insensitive).
 * `completions(n)`: answers a second with n in progress.
 */
export function processorSharing(arrivals: number, completions: (n: number) => number, most: number): number[] {
  const weights = [1]
  for (let n = 1; n <= most; n++) {
    weights.push((weights[n - 1]! * arrivals) / completions(n))
    // Ratios count: keep them within the range of numbers.
    if (weights[n]! > 1e200) for (let index = 0; index <= n; index++) weights[index]! /= 1e200
  }
  const sum = weights.reduce((total, weight) => total + weight, 0)
  return weights.map((weight) => weight / sum)
}

export const meanOf = (distribution: readonly number[]): number =>
  distribution.reduce((sum, share, n) => sum + share * n, 0)
