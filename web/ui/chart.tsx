// Curves, drawn by uPlot; loaded with the pages that have curves.
import { RotateCcw } from 'lucide-react'
import { useId } from 'react'
import type uPlot from 'uplot'
import { classes } from '../lib/classes.ts'
import { formatNumber, formatTime, none } from '../lib/format.ts'
import { Button } from './button.tsx'
import { type ChartProps, colorToken, type Series } from './chart-plot.ts'
import { DataTable } from './chart-table.tsx'
import { Disclosure } from './disclosure.tsx'
import { usePlot } from './use-plot.ts'

export function Chart({
  title,
  series,
  xLabel,
  yLabel,
  time = false,
  log = false,
  height = 260,
  formatX = time ? (x) => formatTime(new Date(x * 1000)) : (x) => formatNumber(x, 6),
  formatY = (y) => formatNumber(y, 4),
  marks = [],
  sync,
}: ChartProps) {
  const { box, data, cursor, zoomed, hidden, reset, toggle, move } = usePlot({
    series,
    xLabel,
    ...(yLabel && { yLabel }),
    time,
    log,
    height,
    formatX,
    formatY,
    marks,
    ...(sync && { sync }),
  })
  const id = useId()
  const at = cursor !== null ? data[0][cursor] : undefined
  return (
    <figure className="min-w-0">
      <div className="mb-1.5 flex min-h-7 flex-wrap items-center gap-x-4 gap-y-1 text-sm">
        {series.map((each, index) =>
          each.faint ? null : (
            <LegendEntry
              key={each.name}
              series={each}
              color={colorToken(series, index)}
              value={readAt(data, index, cursor, formatY)}
              hidden={hidden.has(each.name)}
              onToggle={() => toggle(each.name)}
            />
          ),
        )}
        <span className="ml-auto text-muted">
          {at === undefined ? '' : `${time ? '' : `${xLabel} `}${formatX(at)}`}
        </span>
        {zoomed && (
          <Button size="sm" variant="quiet" icon={<RotateCcw aria-hidden />} onClick={reset}>
            Reset zoom
          </Button>
        )}
      </div>
      <div
        ref={box}
        role="img"
        aria-label={`${title}. ${series
          .filter(({ faint }) => !faint)
          .map((each) => describe(each, formatX, formatY, xLabel))
          .join(' ')}`}
        aria-describedby={id}
        // biome-ignore lint/a11y/noNoninteractiveTabindex: arrow keys read its values
        tabIndex={0}
        onKeyDown={move}
        className="min-w-0 rounded-md"
        style={{ minHeight: height }}
      />
      <p id={id} className="sr-only">
        Arrow keys read the values, Escape resets the zoom.
      </p>
      <span role="status" className="sr-only">
        {at === undefined
          ? ''
          : `${xLabel} ${formatX(at)}: ${series
              .map((each, index) => (each.faint ? '' : `${each.name} ${readAt(data, index, cursor, formatY)}`))
              .filter(Boolean)
              .join(', ')}`}
      </span>
      <figcaption>
        <Disclosure summary="Show as table" quiet>
          <DataTable title={title} series={series} data={data} xLabel={xLabel} formatX={formatX} formatY={formatY} />
        </Disclosure>
      </figcaption>
    </figure>
  )
}

/** A series of the legend, with its value; a click hides and shows it. */
function LegendEntry({
  series,
  color,
  value,
  hidden,
  onToggle,
}: {
  series: Series
  color: string
  value: string
  hidden: boolean
  onToggle: () => void
}) {
  return (
    <button
      type="button"
      aria-pressed={!hidden}
      onClick={onToggle}
      className={classes('inline-flex items-center gap-1.5 rounded-sm', hidden && 'line-through opacity-60')}
    >
      <svg aria-hidden viewBox="0 0 16 4" className="h-1 w-4">
        <line
          x1="0"
          x2="16"
          y1="2"
          y2="2"
          strokeWidth="3"
          strokeDasharray={series.dash ? '4 3' : undefined}
          stroke={`var(${color})`}
        />
      </svg>
      <span className="text-muted">{series.name}</span>
      <span className="font-medium">{value}</span>
    </button>
  )
}

/** The value of a series at the cursor, or the last one at or before it; without a cursor its latest. */
function readAt(data: uPlot.AlignedData, index: number, cursor: number | null, format: (y: number) => string): string {
  const values = data[index + 1] as (number | null | undefined)[] | undefined
  for (let at = cursor ?? (values?.length ?? 0) - 1; at >= 0; at--) {
    const value = values?.[at]
    if (value !== null && value !== undefined) return format(value)
  }
  return none
}

function describe(
  { name, x, y }: Series,
  formatX: (x: number) => string,
  formatY: (y: number) => string,
  xLabel: string,
): string {
  const values = y.flatMap((value, index) => (value === null ? [] : [{ x: x[index]!, y: value }]))
  if (values.length === 0) return `${name}: no values yet.`
  const lowest = values.reduce((best, each) => (each.y < best.y ? each : best))
  return (
    `${name}: from ${formatY(values[0]!.y)} to ${formatY(values.at(-1)!.y)}, ` +
    `lowest ${formatY(lowest.y)} at ${xLabel.toLowerCase()} ${formatX(lowest.x)}.`
  )
}
