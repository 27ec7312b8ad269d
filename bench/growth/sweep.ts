// A sweep: figures of the real service at growing sizes of one thing, until the next size would take too long.
import { fit } from './fit.ts'

export interface Measure {
  name: string
  unit: 's' | 'ms' | 'MB' | 'tokens/s'
  /** What is promised: the exponent is at most, or at least, this. */
  bound?: { most?: number; least?: number }
}

export interface Sweep {
  name: string
  /** What grows, with its unit: the axis of the plots. */
  what: string
  sizes: readonly number[]
  /** Further sizes of `--large`. */
  large: readonly number[]
  /** A plot each, side by side. */
  plots: readonly { title: string; measures: readonly Measure[] }[]
  /**
   * Starts what is measured, with so many threads of engine and trainer; `at` returns a figure for each name of a
   * measure, or for those that a size has.
   */
  open(threads: number): Promise<{ at(size: number): Promise<Record<string, number>>; close(): Promise<void> }>
}

export interface Curve extends Measure {
  points: [size: number, value: number][]
  exponent: number | null
  /** Whether the exponent is within its bound; null without one. */
  holds: boolean | null
}

export interface Result {
  name: string
  what: string
  plots: { title: string; curves: Curve[] }[]
  seconds: number
  /** The first size that was left out, and how long it would have taken. */
  left_out?: { size: number; seconds: number }
}

export interface Options {
  /** Also the sizes that are large. */
  large: boolean
  threads: number
  /** The longest that a size may take. */
  seconds_max: number
}

/** Runs the sizes in order until one would take too long, judged by the growth of the last two. */
export async function runSweep(
  sweep: Sweep,
  { large, threads, seconds_max }: Options,
  report: (text: string) => void,
  now = () => performance.now(),
): Promise<Result> {
  const began = now()
  const measured: { size: number; seconds: number; figures: Record<string, number> }[] = []
  let left_out: Result['left_out']
  const opened = await sweep.open(threads)
  try {
    for (const size of [...sweep.sizes, ...(large ? sweep.large : [])]) {
      const next_seconds = secondsOf(size, measured)
      if (next_seconds > seconds_max) {
        left_out = { size, seconds: Math.round(next_seconds) }
        report(`${sweep.name}: ${size} left out, would take ${left_out.seconds} s`)
        break
      }
      const started = now()
      const figures = await opened.at(size)
      const seconds = (now() - started) / 1000
      measured.push({ size, seconds, figures })
      const text = Object.entries(figures).map(([name, value]) => `${name} ${Number(value.toPrecision(3))}`)
      report(`${sweep.name}: ${size} in ${seconds.toFixed(0)} s: ${text.join(', ')}`)
    }
  } finally {
    await opened.close()
  }
  const curve = (measure: Measure): Curve => {
    const points = measured.flatMap(({ size, figures }): Curve['points'] => {
      const value = figures[measure.name]
      return value === undefined ? [] : [[size, Number(value.toPrecision(4))]]
    })
    const exponent = fit(points)?.exponent ?? null
    return { ...measure, points, exponent, holds: holdsBound(measure, exponent) }
  }
  return {
    name: sweep.name,
    what: sweep.what,
    plots: sweep.plots.map(({ title, measures }) => ({ title, curves: measures.map(curve) })),
    seconds: Math.round((now() - began) / 1000),
    ...(left_out && { left_out }),
  }
}

/** Predicted duration of a size: that of the last one, growing as the last two did. 0 where there are no two. */
function secondsOf(size: number, measured: readonly { size: number; seconds: number }[]): number {
  const growth = fit(measured.slice(-2).map(({ size: x, seconds }) => [x, seconds]))
  const last = measured.at(-1)!
  return growth ? last.seconds * (size / last.size) ** Math.max(0, growth.exponent) : 0
}

function holdsBound({ bound }: Measure, exponent: number | null): boolean | null {
  if (!bound) return null
  return exponent !== null && exponent <= (bound.most ?? Infinity) && exponent >= (bound.least ?? -Infinity)
}

/** Two places, and no minus before a zero. */
export const exponentText = (exponent: number) => (Math.round(exponent * 100) / 100 + 0).toFixed(2)

const boundText = ({ bound = {} }: Measure) =>
  bound.most !== undefined ? `at most ${bound.most}` : bound.least !== undefined ? `at least ${bound.least}` : '–'

/** A row for each curve: its figures by size, its exponent and the bound. */
export function tableOf({ what, plots, left_out }: Result): string {
  const curves = plots.flatMap(({ curves: each }) => each)
  const sizes = [...new Set(curves.flatMap(({ points }) => points.map(([size]) => size)))].sort((a, b) => a - b)
  const figure = (curve: Curve, size: number) => {
    const value = curve.points.find(([x]) => x === size)?.[1]
    return value === undefined ? '–' : Number(value.toPrecision(3)).toLocaleString('en-US')
  }
  const rows = curves.map((curve) => {
    const exponent = curve.exponent === null ? '–' : exponentText(curve.exponent)
    const verdict = curve.holds === null ? exponent : curve.holds ? `**${exponent}**` : `${exponent}: missed`
    return [`${curve.name}, ${curve.unit}`, ...sizes.map((size) => figure(curve, size)), verdict, boundText(curve)]
  })
  const head = [what, ...sizes.map((size) => size.toLocaleString('en-US')), 'exponent', 'promised']
  const lines = [head, head.map(() => '---'), ...rows].map((cells) => `| ${cells.join(' | ')} |`)
  const note = left_out
    ? `\n\nLeft out: ${left_out.size.toLocaleString('en-US')}, which would take ${left_out.seconds} s.`
    : ''
  return lines.join('\n') + note
}
