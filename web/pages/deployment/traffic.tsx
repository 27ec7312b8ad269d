import { useQuery } from '@tanstack/react-query'
import { useState } from 'react'
import type { Timeline } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { formatCompact, formatCount, formatDuration, formatTime } from '../../lib/format.ts'
import { refresh_ms } from '../../lib/query.ts'
import { Bars } from '../../ui/bars.tsx'
import { Chart } from '../../ui/chart.tsx'
import { Help } from '../../ui/disclosure.tsx'
import { Loaded } from '../../ui/feedback.tsx'
import { Card, Stat } from '../../ui/layout.tsx'
import { Segments } from '../../ui/toggles.tsx'
import { Count } from '../../ui/values.tsx'

const spans = [
  { value: '1', label: '1 hour' },
  { value: '24', label: '24 hours' },
  { value: '168', label: '7 days' },
  { value: '720', label: '30 days' },
] as const
const hour_ms = 3_600_000

/** Requests, errors, tokens and latency of a name over time. */
export function Traffic({ name }: { name: string }) {
  const [span, setSpan] = useState<(typeof spans)[number]['value']>('24')
  const query = useQuery({
    queryKey: ['deployments', name, 'metrics', span],
    queryFn: ({ signal }) =>
      tunery.deployments.metrics(
        name,
        { from: new Date(Date.now() - Number(span) * hour_ms).toISOString() },
        { signal },
      ),
    refetchInterval: span === '1' ? 2 * refresh_ms : 12 * refresh_ms,
  })
  return (
    <Card title="Traffic" actions={<Segments label="Time" value={span} onChange={setSpan} choices={spans} />}>
      <Loaded query={query}>{(timeline) => <Figures timeline={timeline} />}</Loaded>
    </Card>
  )
}

const seconds = (ms: number) => formatDuration(ms / 1000)
const errorNames: Record<keyof Timeline['total']['errors'], string> = {
  client_left: 'cancelled by client',
  broken: 'interrupted',
  failed: 'failed',
  refused: 'rejected (busy)',
  invalid: 'invalid',
}

function Figures({ timeline: { total, buckets } }: { timeline: Timeline }) {
  if (total.requests === 0)
    return <p className="text-muted">No requests in this period. New ones show up within a minute.</p>
  const { errors } = total
  const failures = errors.broken + errors.failed + errors.refused + errors.invalid
  const told = Object.entries(errors).filter(([, count]) => count > 0) as [keyof typeof errors, number][]
  const x = buckets.map(({ at }) => Date.parse(at) / 1000)
  return (
    <div className="grid gap-6">
      <dl className="grid grid-cols-2 gap-4 sm:grid-cols-5">
        <Stat label="Requests" value={<Count value={total.requests} />} />
        <Stat
          label="Errors"
          value={<span className={failures > 0 ? 'text-bad' : ''}>{formatCount(failures)}</span>}
          note={told.map(([kind, count]) => `${formatCount(count)} ${errorNames[kind]}`).join(', ') || undefined}
        />
        <Stat
          label="Time to first token"
          value={total.first_token_ms ? seconds(total.first_token_ms.p50) : '–'}
          note={total.first_token_ms ? `p95 ${seconds(total.first_token_ms.p95)}` : undefined}
        />
        <Stat
          label="Total time"
          value={total.latency_ms ? seconds(total.latency_ms.p50) : '–'}
          note={total.latency_ms ? `p95 ${seconds(total.latency_ms.p95)}` : undefined}
        />
        <Stat
          label="Tokens"
          value={<Count compact value={total.prompt_tokens + total.completion_tokens} />}
          note={`${formatCompact(total.completion_tokens)} out`}
        />
      </dl>
      <Bars
        title="Requests"
        bars={buckets.map(({ at, requests, errors: each }) => {
          const bad = each.broken + each.failed + each.refused + each.invalid
          return {
            label: formatTime(at),
            value: requests,
            parts: [
              { name: 'answered', value: requests - bad, color: 1 },
              { name: 'errors', value: bad, color: 2 },
            ],
          }
        })}
      />
      <div>
        <h3 className="mb-2 text-sm text-muted">
          Latency{' '}
          <Help word="p50 and p95">Half of the requests were faster than p50, and 95 of 100 faster than p95.</Help>
        </h3>
        <Chart
          title="Latency"
          xLabel="Time"
          time
          height={200}
          formatY={(value) => formatDuration(value)}
          series={(
            [
              ['First token p50', 'first_token_ms', 'p50', 3, false],
              ['First token p95', 'first_token_ms', 'p95', 3, true],
              ['Answer p50', 'latency_ms', 'p50', 1, false],
              ['Answer p95', 'latency_ms', 'p95', 1, true],
            ] as const
          ).map(([label, figure, rank, color, dash]) => ({
            name: label,
            x,
            y: buckets.map((bucket) => {
              const value = bucket[figure]?.[rank]
              return value === undefined ? null : value / 1000
            }),
            color,
            dash,
            points: true,
          }))}
        />
      </div>
    </div>
  )
}
