// The plot of a chart, by uPlot: made again where its settings change, and else given new values.
import { type KeyboardEvent, useEffect, useMemo, useRef, useState } from 'react'
import uPlot from 'uplot'
import 'uplot/dist/uPlot.min.css'
import { useIsDark } from '../lib/theme.ts'
import { type ChartProps, plotOptions, type Series } from './chart-plot.ts'

type PlotSettings = Omit<ChartProps, 'title'> &
  Required<Pick<ChartProps, 'time' | 'log' | 'marks'>> & {
    height: number
    formatX: (x: number) => string
    formatY: (y: number) => string
  }

/** Steps of different series are joined into one axis; gaps are spanned. */
function joined(series: readonly Series[], log: boolean): uPlot.AlignedData {
  const clean = (y: readonly (number | null)[]) =>
    log ? y.map((value) => (value !== null && value > 0 ? value : null)) : [...y]
  const tables = series.map(({ x, y }) => [[...x], clean(y)] as uPlot.AlignedData)
  return tables.length === 0 ? ([[]] as unknown as uPlot.AlignedData) : uPlot.join(tables)
}

/** Where a key moves the reading to, of as many values. */
function movedBy(key: string, from: number, count: number): number | undefined {
  const page = Math.max(1, Math.round((count - 1) / 20))
  const to = {
    ArrowRight: from + 1,
    ArrowLeft: from - 1,
    PageUp: from + page,
    PageDown: from - page,
    Home: 0,
    End: count - 1,
  }[key]
  return to === undefined ? undefined : Math.min(count - 1, Math.max(0, to))
}

export function usePlot({ series, xLabel, yLabel, time, log, height, formatX, formatY, marks, sync }: PlotSettings) {
  const dark = useIsDark()
  const box = useRef<HTMLDivElement>(null)
  const plot = useRef<uPlot>(null)
  const [cursor, setCursor] = useState<number | null>(null)
  const [zoomed, setZoomed] = useState(false)
  const [hidden, setHidden] = useState<ReadonlySet<string>>(new Set())

  const data = useMemo(() => joined(series, log), [series, log])

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
    if (event.key === 'Escape' && zoomed) return reset()
    const index = movedBy(event.key, cursor ?? -1, last + 1)
    if (index === undefined) return
    event.preventDefault()
    each.setCursor({ left: each.valToPos(data[0][index]!, 'x'), top: each.over.clientHeight / 2 })
    setCursor(index)
  }

  return { box, data, cursor, zoomed, hidden, reset, toggle, move }
}
