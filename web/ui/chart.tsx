// Curves, drawn by uPlot; loaded with the pages that have curves.
import { RotateCcw } from 'lucide-react'
import { type KeyboardEvent, useEffect, useId, useMemo, useRef, useState } from 'react'
import uPlot from 'uplot'
import 'uplot/dist/uPlot.min.css'
import { classes } from '../lib/classes.ts'
import { formatNumber, formatTime, none } from '../lib/format.ts'
import { useIsDark } from '../lib/theme.ts'
import { Button } from './button.tsx'
import { type ChartProps, colorToken, plotOptions, type Series } from './chart-plot.ts'
import { DataTable } from './chart-table.tsx'
import { Disclosure } from './disclosure.tsx'

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
  const dark = useIsDark()
  const box = useRef<HTMLDivElement>(null)
  const plot = useRef<uPlot>(null)
  const [cursor, setCursor] = useState<number | null>(null)
  const [zoomed, setZoomed] = useState(false)
  const [hidden, setHidden] = useState<ReadonlySet<string>>(new Set())
  const id = useId()

  // Steps of different series are joined into one axis; gaps are spanned.
  const data = useMemo(() => {
    const clean = (y: readonly (number | null)[]) =>
      log ? y.map((value) => (value !== null && value > 0 ? value : null)) : [...y]
    const tables = series.map(({ x, y }) => [[...x], clean(y)] as uPlot.AlignedData)
    return tables.length === 0 ? ([[]] as unknown as uPlot.AlignedData) : uPlot.join(tables)
  }, [series, log])

  // What needs a new plot; values alone are exchanged in the plot that is there.
  const shape = JSON.stringify([
    series.map(({ name, color, dash, faint, points }) => [name, color, dash, faint, points]),
    log,
    dark,
    height,
    xLabel,
    yLabel,
    time,
    sync,
  ])
  const latest = useRef({ data, formatX, formatY, marks, hidden })
  latest.current = { data, formatX, formatY, marks, hidden }

  // biome-ignore lint/correctness/useExhaustiveDependencies: `shape` stands for the series and all other settings
  useEffect(() => {
    const element = box.current!
    const created = new uPlot(
      plotOptions({
        series,
        xLabel,
        ...(yLabel && { yLabel }),
        time,
        log,
        ...(sync && { sync }),
        width: element.clientWidth || 300,
        height,
        latest: () => latest.current,
        onCursor: setCursor,
        onZoom: setZoomed,
      }),
      latest.current.data,
      element,
    )
    plot.current = created
    const observer = new ResizeObserver(() => {
      if (element.clientWidth > 0) created.setSize({ width: element.clientWidth, height })
    })
    observer.observe(element)
    return () => {
      observer.disconnect()
      created.destroy()
      plot.current = null
    }
  }, [shape])

  useEffect(() => {
    const each = plot.current
    if (!each || each.data === data) return
    // A zoomed view stays where it is while values arrive.
    each.setData(data, !zoomed)
    if (zoomed) each.redraw()
  }, [data, zoomed])

  const reset = () => {
    const [xs] = data
    if (xs.length > 0) plot.current?.setScale('x', { min: xs[0]!, max: xs.at(-1)! })
  }
  const toggle = (name: string) => {
    const next = new Set(hidden)
    if (!next.delete(name)) next.add(name)
    setHidden(next)
    series.forEach((each, index) => {
      if (
        each.name === name ||
        (each.faint && each.color !== undefined && series.find((other) => other.name === name)?.color === each.color)
      )
        plot.current?.setSeries(index + 1, { show: !next.has(name) })
    })
  }

  /** Arrows move the reading from value to value. */
  function move(event: KeyboardEvent) {
    const each = plot.current
    const last = data[0].length - 1
    if (!each || last < 0) return
    const page = Math.max(1, Math.round(last / 20))
    const from = cursor ?? -1
    const to = {
      ArrowRight: from + 1,
      ArrowLeft: from - 1,
      PageUp: from + page,
      PageDown: from - page,
      Home: 0,
      End: last,
    }[event.key]
    if (event.key === 'Escape' && zoomed) return reset()
    if (to === undefined) return
    event.preventDefault()
    const index = Math.min(last, Math.max(0, to))
    each.setCursor({ left: each.valToPos(data[0][index]!, 'x'), top: each.over.clientHeight / 2 })
    setCursor(index)
  }

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
