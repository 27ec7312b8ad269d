// What uPlot draws of a chart: its axes, lines and marks.
import type uPlot from 'uplot'

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

export const colorToken = (series: readonly Series[], index: number) =>
  `--color-series-${series[index]?.color ?? (index % 6) + 1}`

/** What may change without a new plot. */
interface Latest {
  formatY: (y: number) => string
  marks: NonNullable<ChartProps['marks']>
  hidden: ReadonlySet<string>
}

interface Plot extends Pick<ChartProps, 'series' | 'xLabel' | 'yLabel' | 'time' | 'log' | 'sync'> {
  width: number
  height: number
  latest: () => Latest
  onCursor: (index: number | null) => void
  onZoom: (zoomed: boolean) => void
}

export function plotOptions(plot: Plot): uPlot.Options {
  const { series, xLabel, yLabel, time = false, log = false, sync, width, height, latest, onCursor, onZoom } = plot
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
  return {
    width,
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
        values: (_plot, ticks) => ticks.map((tick) => (tick === null ? '' : latest().formatY(tick))),
      },
    ],
    series: [
      {},
      ...series.map(({ name, dash, faint, points }, index) => {
        const color = resolve(colorToken(series, index))
        return {
          label: name,
          stroke: faint ? pale(color) : color,
          width: faint ? 1 : 2,
          spanGaps: true,
          show: !latest().hidden.has(name),
          ...(dash && { dash: [6, 4] }),
          // A single value is no line.
          points: { show: points || ((plot: uPlot, at: number) => isSingle(plot.data[at]!)), size: 6, fill: color },
        }
      }),
    ],
    hooks: {
      setCursor: [(plot) => onCursor(plot.cursor.idx ?? null)],
      setScale: [
        (plot, key) => {
          if (key !== 'x') return
          const [xs] = plot.data
          const { min, max } = plot.scales.x!
          onZoom(xs.length > 1 && (min! > xs[0]! || max! < xs.at(-1)!))
        },
      ],
      draw: [(plot) => drawMarks(plot, latest().marks, ink)],
    },
  }
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
