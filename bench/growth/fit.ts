// The exponent of a curve: y grows like x to its power.

/** Points at the end of a curve that are fitted: before them, fixed costs hide how it grows. */
const fitted = 3

export interface Fit {
  exponent: number
  /** The fitted value at `x`. */
  at(x: number): number
  /** The first x that it is fitted to. */
  from: number
}

/** Least squares over the logarithms of the last three points. Undefined for fewer than two, or values of 0. */
export function fit(points: readonly (readonly [x: number, y: number])[]): Fit | undefined {
  const last = points.slice(-fitted)
  if (last.length < 2 || last.some(([, y]) => !(y > 0))) return undefined
  const logs = last.map(([x, y]) => [Math.log(x), Math.log(y)] as const)
  const mean = (values: number[]) => values.reduce((sum, value) => sum + value, 0) / values.length
  const meanX = mean(logs.map(([x]) => x))
  const meanY = mean(logs.map(([, y]) => y))
  const exponent =
    logs.reduce((sum, [x, y]) => sum + (x - meanX) * (y - meanY), 0) /
    logs.reduce((sum, [x]) => sum + (x - meanX) ** 2, 0)
  return { exponent, at: (x) => Math.exp(meanY + exponent * (Math.log(x) - meanX)), from: last[0]![0] }
}
