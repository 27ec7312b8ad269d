import { useQuery } from '@tanstack/react-query'
import { useState } from 'react'
import type { UsageReport } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { formatCompact, formatDuration } from '../../lib/format.ts'
import { refresh_ms } from '../../lib/query.ts'
import { useMay } from '../../lib/session.ts'
import { Bars } from '../../ui/bars.tsx'
import { Loaded } from '../../ui/feedback.tsx'
import { Card, Stat } from '../../ui/layout.tsx'
import { Segments } from '../../ui/toggles.tsx'
import { Count, Money } from '../../ui/values.tsx'

const day_ms = 86_400_000
const dayOf = (time: number) => new Date(time).toISOString().slice(0, 10)
const spans = [
  { value: '7', label: '7 days' },
  { value: '30', label: '30 days' },
] as const

/** What the name was used for. */
export function Traffic({ name }: { name: string }) {
  const mayRead = useMay('usage:read')
  const [span, setSpan] = useState<(typeof spans)[number]['value']>('7')
  const from = dayOf(Date.now() - (Number(span) - 1) * day_ms)
  const query = useQuery({
    queryKey: ['usage', { from, group_by: 'day,model' }],
    queryFn: ({ signal }) => tunery.usage.get({ from, group_by: 'day,model' }, { signal }),
    refetchInterval: 6 * refresh_ms,
    enabled: mayRead,
  })
  if (!mayRead) return null
  return (
    <Card title="Traffic" actions={<Segments label="Time" value={span} onChange={setSpan} choices={spans} />}>
      <Loaded query={query}>
        {(report) => {
          const own = report.items.filter(({ model }) => model === name)
          const sum = (of: (item: UsageReport['items'][number]) => number) =>
            own.reduce((total, item) => total + of(item), 0)
          const requests = sum((item) => item.requests)
          const byDay = new Map(own.map((item) => [item.day, item.requests]))
          return (
            <div className="grid gap-5">
              <dl className="grid grid-cols-2 gap-4 sm:grid-cols-5">
                <Stat label="Requests" value={<Count value={requests} />} />
                <Stat label="Tokens in" value={<Count compact value={sum((item) => item.prompt_tokens)} />} />
                <Stat label="Tokens out" value={<Count compact value={sum((item) => item.completion_tokens)} />} />
                <Stat
                  label="Time a request"
                  value={requests > 0 ? formatDuration(sum((item) => item.seconds) / requests) : '–'}
                  note="on average"
                />
                <Stat label="Cost" value={<Money value={sum((item) => item.cost)} currency={report.currency} />} />
              </dl>
              <Bars
                title="Requests by day"
                format={formatCompact}
                bars={Array.from({ length: Number(span) }, (_, index) => {
                  const day = dayOf(Date.parse(from) + index * day_ms)
                  return { label: day, value: byDay.get(day) ?? 0 }
                })}
              />
            </div>
          )
        }}
      </Loaded>
    </Card>
  )
}
