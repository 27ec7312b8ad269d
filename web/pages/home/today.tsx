import { useQuery } from '@tanstack/react-query'
import type { UsageReport } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { formatCount, formatMoney } from '../../lib/format.ts'
import { refresh_ms } from '../../lib/query.ts'
import { useMay } from '../../lib/session.ts'
import { day_ms, utcDay } from '../../lib/utc-day.ts'
import { Bars } from '../../ui/bars.tsx'
import { TextLink } from '../../ui/button.tsx'
import { Loaded } from '../../ui/feedback.tsx'
import { Card, Stat } from '../../ui/layout.tsx'
import { LimitBar } from '../../ui/limit-bar.tsx'
import { Count, Money } from '../../ui/values.tsx'

const days = 14

/** What today used and cost, against the limits; and the last two weeks. */
export function Today() {
  const mayRead = useMay('usage:read')
  const profile = useQuery({
    queryKey: ['user', 'profile'],
    queryFn: ({ signal }) => tunery.user.profile({ signal }),
    refetchInterval: 2 * refresh_ms,
  })
  return (
    <Card
      title="Today"
      description="UTC"
      actions={
        <TextLink to="/settings/$section" params={{ section: 'usage' }}>
          Usage
        </TextLink>
      }
    >
      <div className="grid gap-5">
        <Loaded query={profile}>
          {({ usage, limits }) => (
            <div className="grid gap-3">
              <LimitBar name="API calls today" used={usage.day.used} limit={limits.requests_per_day} />
              <LimitBar name="API calls this minute" used={usage.minute.used} limit={limits.requests_per_minute} />
              <LimitBar name="Running now, jobs included" used={usage.concurrent} limit={limits.max_concurrent} />
            </div>
          )}
        </Loaded>
        {mayRead && <Usage />}
      </div>
    </Card>
  )
}

function Usage() {
  const from = utcDay(Date.now() - (days - 1) * day_ms)
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
                <p className="text-sm text-muted">No model requests or jobs in {days} days.</p>
              ) : report.total.cost > 0 ? (
                <Bars
                  title={`Cost, last ${days} days`}
                  height={72}
                  format={(value) => formatMoney(value, report.currency)}
                  bars={byDay(report, 'cost')}
                />
              ) : (
                <Bars
                  title={`Model requests and jobs, last ${days} days`}
                  height={72}
                  bars={byDay(report, 'requests')}
                />
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
    bars.push({ label: utcDay(time), value: figures.get(utcDay(time)) ?? 0 })
  return bars
}
