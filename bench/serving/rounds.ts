// Interleaves the measurements of two sides, so that drift of the machine affects both.
import type { Limits } from '../support/machine.ts'
import { median } from './job.ts'

export interface Row {
  scenario: string
  what: string
  unit: string
  ours: number
  theirs: number | null
  /** Ours divided by theirs. */
  ratio: number | null
  asked: string
  holds: boolean | null
  /** Every measurement, in order. */
  ours_all: number[]
  theirs_all: number[]
  note?: string
  /** What our figure takes of the machine, to compare with its limits. */
  demand?: Partial<Limits>
}

export interface Sides<T> {
  ours: T
  theirs: T
}

/** Measures ours, theirs, theirs, ours, `rounds` times. `turn` counts the measurements of each side. */
export async function interleave<T>(
  rounds: number,
  sides: Sides<T>,
  measureOnce: (side: T, turn: number) => Promise<number>,
): Promise<Sides<number[]>> {
  const figures: Sides<number[]> = { ours: [], theirs: [] }
  for (let round = 0; round < rounds; round++) {
    for (const name of ['ours', 'theirs', 'theirs', 'ours'] as const)
      figures[name].push(await measureOnce(sides[name], figures[name].length))
  }
  return figures
}

type Bound = { least?: number; most?: number }

function checkBound(figure: number, { least, most }: Bound): Pick<Row, 'asked' | 'holds'> {
  const asked = least !== undefined ? `>= ${least}` : most !== undefined ? `<= ${most}` : ''
  return {
    asked,
    holds: asked ? figure >= (least ?? Number.NEGATIVE_INFINITY) && figure <= (most ?? Number.POSITIVE_INFINITY) : null,
  }
}

/** A row of medians; the bound is for the ratio of ours to theirs. */
export function comparisonRow(
  scenario: string,
  what: string,
  unit: string,
  figures: Sides<number[]>,
  bound: Bound,
  note?: string,
): Row {
  const [ours, theirs] = [median(figures.ours), median(figures.theirs)]
  const ratio = ours / theirs
  return {
    scenario,
    what,
    unit,
    ours,
    theirs,
    ratio,
    ...checkBound(ratio, bound),
    ours_all: figures.ours,
    theirs_all: figures.theirs,
    ...(note && { note }),
  }
}

/** A row for a figure of ours alone; the bound is for its median. */
export function singleRow(
  scenario: string,
  what: string,
  unit: string,
  all: number[],
  bound: Bound,
  note?: string,
): Row {
  const ours = median(all)
  return {
    scenario,
    what,
    unit,
    ours,
    theirs: null,
    ratio: null,
    ...checkBound(ours, bound),
    ours_all: all,
    theirs_all: [],
    ...(note && { note }),
  }
}

/** Our share of each of the machine's limits that the row is about. */
export function sharesText({ demand = {} }: Row, limits: Limits): string {
  const names = { read_gb_per_s: 'reading memory', float32: 'float32', bfloat16: 'bfloat16', int8: 'int8 products' }
  const shares = Object.entries(demand).map(([name, value]) => {
    const limit = name as keyof Limits
    return `${((100 * value) / limits[limit]).toFixed(0)} % of ${names[limit]}`
  })
  return shares.length > 0 ? `of the machine's limits: ${shares.join(', ')}` : ''
}

const formatted = (value: number | null) =>
  value === null ? '–' : Math.abs(value) >= 100 ? value.toFixed(0) : value.toFixed(Math.abs(value) >= 10 ? 1 : 3)

export function rowText({ scenario, what, unit, ours, theirs, ratio, asked, holds, note }: Row): string {
  const cells = [
    scenario.padEnd(12),
    what.padEnd(44),
    `ours ${formatted(ours)}`.padEnd(14),
    `theirs ${formatted(theirs)}`.padEnd(16),
    unit.padEnd(9),
  ]
  const verdict = holds === null ? '' : holds ? 'holds' : 'DOES NOT HOLD'
  const bound = asked ? `(required ${asked}) ` : ''
  return `${cells.join(' ')} ratio ${formatted(ratio)} ${bound}${verdict}${note ? ` | ${note}` : ''}`
}
