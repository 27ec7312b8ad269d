import type uPlot from 'uplot'
import type { ChartProps } from './chart-plot.ts'

const tableRows = 50

/** The values of a chart as text; of many, every nth and the last. */
export function DataTable({
  title,
  series,
  data,
  xLabel,
  formatX,
  formatY,
}: Pick<ChartProps, 'title' | 'series' | 'xLabel'> &
  Record<'formatX' | 'formatY', (value: number) => string> & { data: uPlot.AlignedData }) {
  // The measured values: of a smoothed curve those behind it, under its name.
  const shown = series
    .map((each, index) => ({ ...each, index }))
    .filter(({ faint }) => !faint)
    .map((each) => {
      const raw = series.findIndex(({ faint, color }) => faint && color === each.color && !each.points)
      return raw === -1 ? each : { ...each, index: raw, name: each.name.replace(/ \(smoothed\)$/, '') }
    })
  const every = Math.ceil(data[0].length / tableRows)
  // What is measured seldom, such as at evaluations, is never left out.
  const seldom = shown.filter(({ x }) => x.length <= tableRows && x.length < data[0].length)
  const rows = [...data[0].keys()].filter(
    (index) =>
      index % every === 0 ||
      index === data[0].length - 1 ||
      seldom.some((each) => data[each.index + 1]?.[index] !== null && data[each.index + 1]?.[index] !== undefined),
  )
  return (
    <div className="max-h-72 overflow-auto rounded-md ring-1 ring-line">
      <table aria-label={title} className="w-full text-right text-sm">
        <thead className="sticky top-0 bg-surface">
          <tr>
            {[xLabel, ...shown.map(({ name }) => name)].map((name) => (
              <th key={name} scope="col" className="border-b border-line px-3 py-1.5 font-medium text-muted">
                {name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={row}>
              <th scope="row" className="px-3 py-1 font-normal">
                {formatX(data[0][row]!)}
              </th>
              {shown.map(({ name, index }) => {
                const value = data[index + 1]?.[row]
                return (
                  <td key={name} className="px-3 py-1">
                    {value === null || value === undefined ? '' : formatY(value)}
                  </td>
                )
              })}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  )
}
