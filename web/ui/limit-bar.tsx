import { formatCount } from '../lib/format.ts'
import { Progress } from './feedback.tsx'
import { Count } from './values.tsx'

/** How much of a limit is used. `limit` null: there is none. */
export function LimitBar({
  name,
  used,
  limit,
  format,
}: {
  name: string
  used: number
  limit: number | null
  format?: (value: number) => string
}) {
  const share = limit ? used / limit : 0
  return (
    <div className="grid gap-1">
      <div className="flex justify-between gap-4">
        <span className="text-muted">{name}</span>
        <span>
          {format ? format(used) : <Count value={used} />}
          <span className="text-muted"> {limit === null ? '(no limit)' : `of ${(format ?? formatCount)(limit)}`}</span>
        </span>
      </div>
      {limit !== null && (
        <Progress label={name} value={share} tone={share >= 1 ? 'bad' : share >= 0.8 ? 'warn' : 'accent'} />
      )}
    </div>
  )
}
