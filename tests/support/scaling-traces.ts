// Load for the autoscaler: synthetic, from a seed, and recorded.

import { readFileSync } from 'node:fs'
import type { ScalingPolicy } from '../../server/features/scaling/autoscaler.ts'
import { seededRandom } from './random.ts'

/** Requests, and how long each takes on a replica that is not crowded. */
export interface Trace {
  name: string
  duration_s: number
  /** When requests come, in seconds, ascending. */
  arrivals: readonly number[]
  service_s: number
  start_s: number
  /** Where it differs from that of the other traces. */
  policy?: Partial<ScalingPolicy>
}

const service_s = 4
const start_s = 20

/** Poisson arrivals such that `concurrent(t)` requests are in progress on average, in a system that keeps up. */
function trace(name: string, duration_s: number, seed: number, concurrent: (t: number) => number): Trace {
  const next = seededRandom(seed)
  const arrivals: number[] = []
  const most = Math.max(...Array.from({ length: 2000 }, (_, n) => concurrent((n / 2000) * duration_s))) / service_s
  const untilNext = () => -Math.log(1 - next()) / most
  let t = untilNext()
  while (t < duration_s) {
    if (next() * most < concurrent(t) / service_s) arrivals.push(t)
    t += untilNext()
  }
  return { name, duration_s, arrivals, service_s, start_s }
}

const hour_s = 3600

/** Synthetic load. Requests take 4 s, a replica starts in 20 s. */
export function syntheticTraces(seed: number): Trace[] {
  return [
    trace('steady', 2 * hour_s, seed, () => 20),
    trace('spikes', 4 * hour_s, seed + 1, (t) => (t % 1800 > 600 && t % 1800 < 780 ? 60 : 6)),
    trace('short spikes', 4 * hour_s, seed + 2, (t) => (t % 900 > 300 && t % 900 < 330 ? 40 : 6)),
    trace('slow ramps', 4 * hour_s, seed + 3, (t) => 4 + 56 * (1 - Math.abs(((t / hour_s) % 2) - 1))),
    trace('flapping', 2 * hour_s, seed + 4, (t) => (t % 120 < 60 ? 30 : 6)),
    trace('slow flapping', 4 * hour_s, seed + 5, (t) => (t % 1200 < 600 ? 40 : 8)),
    {
      ...trace('a day', 24 * hour_s, seed + 6, (t) => {
        const hour = t / hour_s
        const office = Math.exp(-((hour - 11) ** 2) / 8) + 0.8 * Math.exp(-((hour - 15.5) ** 2) / 6)
        return hour < 5 || hour > 23 ? 0 : 1 + 50 * office
      }),
      policy: { min_replicas: 0 },
    },
  ]
}

/**
 * Load of a real run: requests of clients to a service on two cores, with the times that its replicas took to start and
 * to answer.
 */
export const recordedTrace = JSON.parse(
  readFileSync(new URL('../fixtures/scaling-load.json', import.meta.url), 'utf8'),
) as Trace
