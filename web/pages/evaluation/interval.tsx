import { formatNumber } from '../../lib/format.ts'

interface Score {
  mean: number
  low: number | null
  high: number | null
}

/** Scores with their intervals on one scale. */
export function Interval({ entries }: { entries: { label: string; interval: Score | null }[] }) {
  const intervals = entries.flatMap(({ interval }) => (interval ? [interval] : []))
  if (intervals.length === 0) return null
  const low = Math.min(0, ...intervals.map((score) => score.low ?? score.mean))
  const high = Math.max(1, ...intervals.map((score) => score.high ?? score.mean))
  const at = (value: number) => `${((value - low) / (high - low)) * 100}%`
  return (
    <div className="grid gap-3">
      {entries.map(({ label, interval }) => (
        <div key={label} className="grid gap-1">
          <div className="flex justify-between gap-3 text-sm">
            <span className="min-w-0 truncate">{label}</span>
            <span>
              {formatNumber(interval?.mean)}
              {interval && interval.low !== null && (
                <span className="text-muted">
                  {' '}
                  ({formatNumber(interval.low)} to {formatNumber(interval.high)})
                </span>
              )}
            </span>
          </div>
          <div aria-hidden className="relative h-3 rounded-full bg-hover">
            {interval && interval.low !== null && interval.high !== null && (
              <div
                className="absolute inset-y-0 rounded-full bg-accent-soft ring-1 ring-accent/40"
                style={{ left: at(interval.low), width: `calc(${at(interval.high)} - ${at(interval.low)})` }}
              />
            )}
            {interval && (
              <div
                className="absolute -inset-y-0.5 w-1 -translate-x-1/2 rounded-full bg-accent"
                style={{ left: at(interval.mean) }}
              />
            )}
          </div>
        </div>
      ))}
    </div>
  )
}
