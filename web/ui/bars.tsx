// Small drawings without a library: bars, histograms, sparklines.
import { useState } from 'react'
import { classes } from '../lib/classes.ts'
import { formatCount, formatNumber } from '../lib/format.ts'

interface Bar {
  label: string
  value: number
  /** Parts of the value, from the bottom; else the whole has the first colour. */
  parts?: readonly { name: string; value: number; color: 1 | 2 | 3 | 4 | 5 | 6 }[]
  tone?: 'accent' | 'warn' | 'bad' | undefined
}

const tones = { accent: 'bg-series-1', warn: 'bg-series-2', bad: 'bg-bad' }
const colors = ['', 'bg-series-1', 'bg-series-2', 'bg-series-3', 'bg-series-4', 'bg-series-5', 'bg-series-6']

/** Amounts by day or by kind. Hovering, or the arrow keys, read one out. */
export function Bars({
  title,
  bars,
  format = formatCount,
  height = 120,
  limit,
}: {
  title: string
  bars: readonly Bar[]
  format?: (value: number) => string
  height?: number | undefined
  /** Drawn as a line, with its name. */
  limit?: { value: number; label: string }
}) {
  const [at, setAt] = useState<number>()
  const top = Math.max(1e-12, limit?.value ?? 0, ...bars.map(({ value }) => value))
  const total = bars.reduce((sum, { value }) => sum + value, 0)
  const shown = at === undefined ? undefined : bars[at]
  return (
    <figure className="min-w-0">
      <div className="mb-1 flex min-h-5 justify-between gap-4 text-sm">
        <span className="text-muted">{shown ? shown.label : title}</span>
        <span role="status" className="font-medium">
          {shown ? (
            format(shown.value)
          ) : (
            <span className="shrink-0 whitespace-nowrap text-muted">
              max {format(Math.max(0, ...bars.map(({ value }) => value)))}
            </span>
          )}
        </span>
      </div>
      <div
        role="img"
        aria-label={
          `${title}: ${bars.length} values, ${format(total)} together, ` +
          `at most ${format(Math.max(0, ...bars.map(({ value }) => value)))}.`
        }
        // biome-ignore lint/a11y/noNoninteractiveTabindex: arrow keys read its values
        tabIndex={0}
        className="relative flex items-end gap-0.5 border-b border-edge"
        style={{ height }}
        onMouseLeave={() => setAt(undefined)}
        onBlur={() => setAt(undefined)}
        onKeyDown={(event) => {
          const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key]
          if (step === undefined) return
          event.preventDefault()
          setAt(Math.min(bars.length - 1, Math.max(0, (at ?? (step > 0 ? -1 : bars.length)) + step)))
        }}
      >
        {limit && (
          <div
            className="absolute inset-x-0 border-t border-dashed border-warn"
            style={{ bottom: `${(limit.value / top) * 100}%` }}
          >
            <span className="absolute right-0 bottom-0.5 text-xs text-warn">{limit.label}</span>
          </div>
        )}
        {bars.map((bar, index) => (
          // biome-ignore lint/a11y/noStaticElementInteractions: a reading aid; arrow keys do the same
          <div
            key={`${bar.label} ${index}`}
            className={classes(
              'flex h-full min-w-0 flex-1 flex-col justify-end rounded-t-sm',
              at === index && 'bg-hover',
            )}
            onMouseEnter={() => setAt(index)}
          >
            {(bar.parts ?? [{ name: bar.label, value: bar.value, color: undefined }]).toReversed().map((part) => (
              <div
                key={part.name}
                className={classes('first:rounded-t-sm', part.color ? colors[part.color] : tones[bar.tone ?? 'accent'])}
                style={{ height: `${(part.value / top) * 100}%`, minHeight: part.value > 0 ? 2 : 0 }}
              />
            ))}
          </div>
        ))}
      </div>
      <div className="mt-1 flex justify-between text-xs text-muted" aria-hidden>
        <span>{bars[0]?.label}</span>
        <span>{bars.length > 1 ? bars.at(-1)!.label : ''}</span>
      </div>
    </figure>
  )
}

/** How often which size: `cut` marks the bins beyond it, such as rows longer than `max_length`. */
export function Histogram({
  title,
  bins,
  unit,
  cut,
  height,
}: {
  title: string
  bins: readonly { from: number; to: number; count: number }[]
  unit: string
  cut?: number
  height?: number | undefined
}) {
  return (
    <Bars
      title={title}
      height={height}
      bars={bins.map(({ from, to, count }) => ({
        label: `${formatNumber(from, 6)} to ${formatNumber(to, 6)} ${unit}`,
        value: count,
        tone: cut !== undefined && from >= cut ? 'warn' : 'accent',
      }))}
    />
  )
}

/** The shape of a curve in a line of a table. `label` says what it is; the last value stands beside it in the page. */
export function Sparkline({
  values,
  label,
  className = 'h-6 w-24',
}: {
  values: readonly number[]
  label: string
  className?: string
}) {
  if (values.length < 2) return <span className="text-muted">–</span>
  const low = Math.min(...values)
  const span = Math.max(...values) - low || 1
  const points = values.map(
    (value, index) => `${(index / (values.length - 1)) * 100},${24 - ((value - low) / span) * 24}`,
  )
  return (
    <svg
      role="img"
      aria-label={label}
      viewBox="-1 -2 102 28"
      preserveAspectRatio="none"
      className={classes('overflow-visible', className)}
    >
      <polyline
        points={points.join(' ')}
        fill="none"
        className="stroke-series-1"
        strokeWidth="1.5"
        vectorEffect="non-scaling-stroke"
        strokeLinejoin="round"
      />
    </svg>
  )
}
