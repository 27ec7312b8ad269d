import { useQuery } from '@tanstack/react-query'
import type { UsageReport } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { formatCount, formatMoney } from '../../lib/format.ts'
import { refresh_ms } from '../../lib/query.ts'
import { useMay } from '../../lib/session.ts'
import { Bars } from '../../ui/bars.tsx'
import { TextLink } from '../../ui/button.tsx'
import { Loaded, Progress } from '../../ui/feedback.tsx'
import { Card, Stat } from '../../ui/layout.tsx'
import { Count, Money } from '../../ui/values.tsx'

const days = 14
const day_ms = 86_400_000
/** UTC days, as the API's limits count. */
const dayOf = (time: number) => new Date(time).toISOString().slice(0, 10)

/** What today used and cost, against the limits; and the last two weeks. */
export function Today() {
  const mayRead = useMay('usage:read')
  const profile = useQuery({
    queryKey: ['user', 'profile'],
    queryFn: ({ signal }) => tunery.user.profile({ signal }),
    refetchInterval: 2 * refresh_ms,
  })
  return (
    <Card title="Today" description="Days are UTC" actions={<TextLink to="/settings">Limits and usage</TextLink>}>
      <div className="grid gap-5">
        <Loaded query={profile}>
          {({ usage, limits }) => (
            <div className="grid gap-3">
              <Limit name="Requests today" used={usage.day.used} limit={limits.requests_per_day} />
              <Limit name="Requests this minute" used={usage.minute.used} limit={limits.requests_per_minute} />
              <Limit name="At once, jobs included" used={usage.concurrent} limit={limits.max_concurrent} />
            </div>
          )}
        </Loaded>
        {mayRead && <Usage />}
      </div>
    </Card>
  )
}

function Usage() {
  const from = dayOf(Date.now() - (days - 1) * day_ms)
  const usage = useQuery({
    queryKey: ['usage', { from, group_by: 'day' }],
    queryFn: ({ signal }) => tunery.usage.get({ from, group_by: 'day' }, { signal }),
    refetchInterval: 6 * refresh_ms,
  })
  return (
    <Loaded query={usage}>
      {(report) => {
        const today = report.items.find(({ day }) => day === report.to)
        return (
          <>
            <dl className="grid grid-cols-2 gap-4 border-t border-line pt-4">
              <Stat label="Cost" value={<Money value={today?.cost ?? 0} currency={report.currency} />} />
              <Stat
                label="Tokens"
                value={<Count compact value={(today?.prompt_tokens ?? 0) + (today?.completion_tokens ?? 0)} />}
                note={today?.trained_tokens ? `${formatCount(today.trained_tokens)} trained` : undefined}
              />
            </dl>
            <div className="border-t border-line pt-4">
              {report.total.requests === 0 ? (
                <p className="text-sm text-muted">No requests and no jobs in {days} days.</p>
              ) : report.total.cost > 0 ? (
                <Bars
                  title={`Cost of ${days} days`}
                  height={72}
                  format={(value) => formatMoney(value, report.currency)}
                  bars={byDay(report, 'cost')}
                />
              ) : (
                <Bars title={`Requests and jobs of ${days} days`} height={72} bars={byDay(report, 'requests')} />
              )}
            </div>
          </>
        )
      }}
    </Loaded>
  )
}

/** Days without usage have no item. */
function byDay({ from, to, items }: UsageReport, figure: 'cost' | 'requests') {
  const figures = new Map(items.map((item) => [item.day, item[figure]]))
  const bars = []
  for (let time = Date.parse(from); time <= Date.parse(to); time += day_ms)
    bars.push({ label: dayOf(time), value: figures.get(dayOf(time)) ?? 0 })
  return bars
}

function Limit({ name, used, limit }: { name: string; used: number; limit: number | null }) {
  const share = limit ? used / limit : 0
  return (
    <div className="grid gap-1">
      <div className="flex justify-between gap-4">
        <span className="text-muted">{name}</span>
        <span>
          <Count value={used} />
          <span className="text-muted"> {limit === null ? 'without a limit' : `of ${formatCount(limit)}`}</span>
        </span>
      </div>
      {limit !== null && (
        <Progress label={name} value={share} tone={share >= 1 ? 'bad' : share >= 0.8 ? 'warn' : 'accent'} />
      )}
    </div>
  )
}
