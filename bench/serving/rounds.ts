// Two sides in turn, so that what drifts on the machine falls on both.
import { median } from './job.ts'

export interface Row {
  scenario: string
  what: string
  unit: string
  ours: number
  theirs: number | null
  /** Ours over theirs, or what `what` says. */
  ratio: number | null
  asked: string
  holds: boolean | null
  /** Every single measurement, in the order it was made. */
  ours_all: number[]
  theirs_all: number[]
  note?: string
}

export interface Sides<T> {
  ours: T
  theirs: T
}

/**
 * Measures ours, theirs, theirs, ours, `rounds` times. `take` gets a number that no other measurement of that side has.
 */
export async function inTurns<T>(
  rounds: number,
  sides: Sides<T>,
  take: (side: T, turn: number) => Promise<number>,
): Promise<Sides<number[]>> {
  const found: Sides<number[]> = { ours: [], theirs: [] }
  for (let round = 0; round < rounds; round++) {
    for (const name of ['ours', 'theirs', 'theirs', 'ours'] as const)
      found[name].push(await take(sides[name], found[name].length))
  }
  return found
}

type Bound = { least?: number; most?: number }

function judged(figure: number, { least, most }: Bound): Pick<Row, 'asked' | 'holds'> {
  const asked = least !== undefined ? `>= ${least}` : most !== undefined ? `<= ${most}` : ''
  return {
    asked,
    holds: asked ? figure >= (least ?? Number.NEGATIVE_INFINITY) && figure <= (most ?? Number.POSITIVE_INFINITY) : null,
  }
}

/** A row of the medians. `least` or `most` is what the ratio of ours to theirs has to keep. */
export function compared(
  scenario: string,
  what: string,
  unit: string,
  found: Sides<number[]>,
  bound: Bound,
  note?: string,
): Row {
  const [ours, theirs] = [median(found.ours), median(found.theirs)]
  const ratio = ours / theirs
  return {
    scenario,
    what,
    unit,
    ours,
    theirs,
    ratio,
    ...judged(ratio, bound),
    ours_all: found.ours,
    theirs_all: found.theirs,
    ...(note && { note }),
  }
}

/** A row about ours alone, or about a figure that is no ratio of the two. */
export function alone(scenario: string, what: string, unit: string, all: number[], bound: Bound, note?: string): Row {
  const ours = median(all)
  return {
    scenario,
    what,
    unit,
    ours,
    theirs: null,
    ratio: null,
    ...judged(ours, bound),
    ours_all: all,
    theirs_all: [],
    ...(note && { note }),
  }
}

const shown = (value: number | null) =>
  value === null ? '–' : Math.abs(value) >= 100 ? value.toFixed(0) : value.toFixed(Math.abs(value) >= 10 ? 1 : 3)

export function rowText({ scenario, what, unit, ours, theirs, ratio, asked, holds, note }: Row): string {
  const cells = [
    scenario.padEnd(12),
    what.padEnd(44),
    `ours ${shown(ours)}`.padEnd(14),
    `theirs ${shown(theirs)}`.padEnd(16),
    unit.padEnd(9),
  ]
  const verdict = holds === null ? '' : holds ? 'holds' : 'DOES NOT HOLD'
  return `${cells.join(' ')} ratio ${shown(ratio)} ${asked ? `(asked ${asked}) ` : ''}${verdict}${note ? ` | ${note}` : ''}`
}
