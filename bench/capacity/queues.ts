// Queues with one line and k servers on a virtual clock: trainings and GPUs, writes and the one connection that writes.
import { exponential, quantile, type Random } from './random.ts'

export interface Waited {
  mean: number
  p95: number
  /** Share of arrivals that waited at all. */
  waited: number
  /** Servers busy, on average. */
  busy: number
}

/** First come, first served. `service` draws the time that one takes. Times in the unit of `service`. */
export function simulateQueue(
  servers: number,
  arrivals: number,
  service: (next: Random) => number,
  count: number,
  next: Random,
): Waited {
  /** When each server is free. */
  const free = new Float64Array(servers)
  const waits = new Float64Array(count)
  let [now, worked] = [0, 0]
  // The queue is empty at first; a tenth is not counted.
  const warmup = Math.ceil(count / 10)
  for (let index = -warmup; index < count; index++) {
    now += exponential(next, 1 / arrivals)
    let first = 0
    for (let server = 1; server < servers; server++) if (free[server]! < free[first]!) first = server
    const begins = Math.max(now, free[first]!)
    const takes = service(next)
    free[first] = begins + takes
    worked += takes
    if (index >= 0) waits[index] = begins - now
  }
  const mean = waits.reduce((sum, wait) => sum + wait, 0) / count
  const waited = waits.reduce((sum, wait) => sum + Number(wait > 0), 0) / count
  return { mean, p95: quantile(waits.sort(), 0.95), waited, busy: worked / now }
}
