// How figures are written: numbers, and the rows of tables.
import type { Target } from './plan.ts'
import type { Policy, Served } from './serving.ts'

export type Row = string[]
export type Say = (line: string) => void

export const whole = (value: number) => Math.round(value).toLocaleString('en-US')
export const digits = (value: number, places = 2) => (Number.isFinite(value) ? value.toFixed(places) : 'without end')
export const percent = (share: number, places = 0) => `${(100 * share).toFixed(places)} %`
export const time = (seconds: number) =>
  !Number.isFinite(seconds) ? 'without end' : seconds < 1 ? `${whole(seconds * 1000)} ms` : `${digits(seconds, 1)} s`
export const off = (simulated: number, formula: number) =>
  `${simulated >= formula ? '+' : '−'}${percent(Math.abs(simulated / formula - 1), 1)}`

export const policyNames: Record<Policy, string> = {
  'least loaded': 'fewest requests (before)',
  multiplexed: 'the less busy of two that have it, at most 64 requests each: as Ray Serve multiplexes',
  hashing: 'consistent hashing, one replica an adapter',
  affinity: 'affinity with bounded loads (now)',
}

export interface Placed extends Omit<Served, 'samples'> {
  overloaded: number
  bases: number
  answered: number
}

export const outcome = ({ answered, first_token, hit_rate, overloaded, bases }: Placed) =>
  `${whole(answered)} answers a second, ${percent(hit_rate)} slot hits, first token p95 ${time(first_token.p95)}` +
  (overloaded > 0 ? `, ${overloaded} of ${bases} bases overloaded` : '')

export const servedCells = (result: Omit<Served, 'samples'>, plan: Pick<Target, 'requests'>): Row => [
  `${whole(result.answered)}${result.answered < 0.9 * plan.requests ? ' **overloaded**' : ''}` +
    (result.refused > 0 ? `, ${whole(result.refused)} refused` : ''),
  percent(result.hit_rate, 1),
  digits(result.loads, 1),
  `${time(result.queue.p50)}, ${time(result.queue.p95)}`,
  [result.first_token.p50, result.first_token.p95, result.first_token.p99].map(time).join(', '),
]
