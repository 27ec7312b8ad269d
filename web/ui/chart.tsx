// Curves, drawn by uPlot; loaded with the pages that have curves.
import { RotateCcw } from 'lucide-react'
import { type KeyboardEvent, useEffect, useId, useMemo, useRef, useState } from 'react'
import uPlot from 'uplot'
import 'uplot/dist/uPlot.min.css'
import { classes } from '../lib/classes.ts'
import { formatNumber, formatTime, none } from '../lib/format.ts'
import { useIsDark } from '../lib/theme.ts'
import { Button } from './button.tsx'
import { Disclosure } from './disclosure.tsx'

export interface Series {
  name: string
  /** Ascending. Steps, seconds, or unix seconds where the chart's `time` is set. Series may differ in theirs. */
  x: readonly number[]
  y: readonly (number | null)[]
  /** 1 to 6; default: its place. Give related series one colour, such as a raw one and the smoothed. */
  color?: 1 | 2 | 3 | 4 | 5 | 6 | undefined
  dash?: boolean
  /** Behind the others, pale: the raw values behind a smoothed curve. It has no entry in the legend. */
  faint?: boolean
  /** Marks each value: for few values, such as evaluations. */
  points?: boolean | undefined
}

export interface ChartProps {
  /** What it shows: its name for screen readers. */
  title: string
  series: readonly Series[]
  /** `Step`, `Seconds`. */
  xLabel: string
  yLabel?: string
  /** x is unix seconds. */
  time?: boolean
  log?: boolean
  height?: number | undefined
  formatX?: ((x: number) => string) | undefined
  formatY?: ((y: number) => string) | undefined
  /** Vertical lines, such as the ends of epochs. */
  marks?: readonly { x: number; label: string }[]
  /** Charts with the same key move their cursor together. */
  sync?: string
}

/** The colour of a token as the page has it now: a canvas knows no variables. */
function resolve(token: string): string {
  const probe = document.createElement('span')
  probe.style.color = `var(${token})`
  document.body.append(probe)
  const { color } = getComputedStyle(probe)
  probe.remove()
  return color
}

const isSingle = (values: ArrayLike<unknown>) =>
  Array.prototype.filter.call(values, (value) => value !== null && value !== undefined).length === 1

const pale = (color: string) => color.replace(/^rgb\((.*)\)$/, 'rgba($1, 0.3)')

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
  const colorOf = (index: number) => `--color-series-${series[index]?.color ?? (index % 6) + 1}`

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
    const ink = resolve('--color-muted')
    const line = resolve('--color-line')
    const font = `12px ${getComputedStyle(document.body).fontFamily}`
    const axis = {
      stroke: ink,
      font,
      labelFont: font,
      ticks: { stroke: line, width: 1, size: 4 },
      grid: { stroke: line, width: 1 },
    }
    const created = new uPlot(
      {
        width: element.clientWidth || 300,
        height,
        legend: { show: false },
        cursor: { ...(sync && { sync: { key: sync } }), drag: { x: true, y: false }, points: { size: 7 } },
        // Not to whole powers of ten: losses often lie within one.
        scales: {
          x: { time },
          y: log ? { distr: 3, range: (_plot, min, max) => (min > 0 ? [min / 1.02, max * 1.02] : [1, 10]) } : {},
        },
        axes: [
          {
            ...axis,
            label: xLabel,
            labelSize: 18,
            size: time ? 44 : 28,
            gap: 4,
            ...(time && { values: (_plot, ticks, _axis, _space, step) => timesOf(ticks, step) }),
            // Steps are whole.
            ...(xLabel === 'Step' && { incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 50_000] }),
          },
          {
            ...axis,
            ...(yLabel && { label: yLabel, labelSize: 18 }),
            ...(log && { splits: (_plot, _axis, min, max) => logTicks(min, max), filter: (_plot, ticks) => ticks }),
            size: (_plot, values) => 14 + 7 * Math.max(3, ...(values ?? []).map((value) => value.length)),
            values: (_plot, ticks) => ticks.map((tick) => (tick === null ? '' : latest.current.formatY(tick))),
          },
        ],
        series: [
          {},
          ...series.map(({ name, dash, faint, points }, index) => {
            const color = resolve(colorOf(index))
            return {
              label: name,
              stroke: faint ? pale(color) : color,
              width: faint ? 1 : 2,
              spanGaps: true,
              show: !latest.current.hidden.has(name),
              ...(dash && { dash: [6, 4] }),
              // A single value is no line.
              points: { show: points || ((plot: uPlot, at: number) => isSingle(plot.data[at]!)), size: 6, fill: color },
            }
          }),
        ],
        hooks: {
          setCursor: [(each) => setCursor(each.cursor.idx ?? null)],
          setScale: [
            (each, key) => {
              if (key !== 'x') return
              const [xs] = each.data
              const { min, max } = each.scales.x!
              setZoomed(xs.length > 1 && (min! > xs[0]! || max! < xs.at(-1)!))
            },
          ],
          draw: [(each) => drawMarks(each, latest.current.marks, ink)],
        },
      },
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
            <button
              key={each.name}
              type="button"
              aria-pressed={!hidden.has(each.name)}
              onClick={() => toggle(each.name)}
              className={classes(
                'inline-flex items-center gap-1.5 rounded-sm',
                hidden.has(each.name) && 'line-through opacity-60',
              )}
            >
              <svg aria-hidden viewBox="0 0 16 4" className="h-1 w-4">
                <line
                  x1="0"
                  x2="16"
                  y1="2"
                  y2="2"
                  strokeWidth="3"
                  strokeDasharray={each.dash ? '4 3' : undefined}
                  stroke={`var(${colorOf(index)})`}
                />
              </svg>
              <span className="text-muted">{each.name}</span>
              <span className="font-medium">{readAt(data, index, cursor, formatY)}</span>
            </button>
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

const clock = new Intl.DateTimeFormat(undefined, { timeStyle: 'short' })
const day = new Intl.DateTimeFormat(undefined, { day: 'numeric', month: 'short' })
const day_s = 86_400

/** Times of an axis, in unix seconds, in the reader's language: days, or hours with the day below where it changes. */
function timesOf(ticks: readonly number[], step: number): string[] {
  const days = ticks.map((tick) => day.format(tick * 1000))
  if (step >= day_s) return days
  return ticks.map((tick, index) => {
    const text = clock.format(tick * 1000)
    return days[index] === days[index - 1] ? text : `${text}\n${days[index]}`
  })
}

/** Ticks of a log scale: 1, 2 and 5 of each power of ten, or even steps where that gives too few. */
function logTicks(min: number, max: number): number[] {
  const ticks: number[] = []
  const from = Math.floor(Math.log10(min))
  const decades = Math.log10(max / min)
  for (let power = from; 10 ** power <= max; power++)
    for (const each of decades > 4 ? [1] : [1, 2, 5]) ticks.push(each * 10 ** power)
  const shown = ticks.filter((tick) => tick >= min && tick <= max)
  if (shown.length > 2) return shown
  const rough = (max - min) / 5
  const size = 10 ** Math.floor(Math.log10(rough))
  const step = ([1, 2, 5].find((each) => each * size >= rough) ?? 10) * size
  return Array.from({ length: Math.floor(max / step) - Math.ceil(min / step) + 1 }, (_, index) =>
    Number(((Math.ceil(min / step) + index) * step).toPrecision(12)),
  )
}

function drawMarks(plot: uPlot, marks: NonNullable<ChartProps['marks']>, color: string): void {
  const { ctx, bbox } = plot
  ctx.save()
  ctx.strokeStyle = color
  ctx.fillStyle = color
  ctx.globalAlpha = 0.6
  ctx.setLineDash([2 * devicePixelRatio, 4 * devicePixelRatio])
  for (const { x, label } of marks) {
    const left = plot.valToPos(x, 'x', true)
    if (left < bbox.left || left > bbox.left + bbox.width) continue
    ctx.beginPath()
    ctx.moveTo(left, bbox.top)
    ctx.lineTo(left, bbox.top + bbox.height)
    ctx.stroke()
    // At the right edge the label stands before its line.
    const gap = 4 * devicePixelRatio
    const before = left + gap + ctx.measureText(label).width > bbox.left + bbox.width
    ctx.textAlign = before ? 'right' : 'left'
    ctx.fillText(label, before ? left - gap : left + gap, bbox.top + 12 * devicePixelRatio)
  }
  ctx.restore()
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

const tableRows = 50

/** The values as text; of many, every nth and the last. */
function DataTable({
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
