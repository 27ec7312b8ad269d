import { type UseQueryResult, useQuery } from '@tanstack/react-query'
import { useMemo } from 'react'
import type { Job, Page } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { isOver, type StreamState, useEvents } from '../../lib/events.ts'
import { formatNumber, formatProgress } from '../../lib/format.ts'
import { isReinforcement, whenText } from '../../lib/jobs.ts'
import { Sparkline } from '../../ui/bars.tsx'
import { TextLink } from '../../ui/button.tsx'
import { Badge, EmptyState, Loaded, Progress, Status } from '../../ui/feedback.tsx'
import { Card } from '../../ui/layout.tsx'

type Jobs = UseQueryResult<Page<Job>>

/** A browser has few connections to a server: the rest of the running jobs is refreshed with the list. */
const mostStreams = 2

export function RunningJobs({ query }: { query: Jobs }) {
  return (
    <Card title="Active jobs">
      <Loaded query={query}>
        {({ items }) => {
          const active = items.filter((job) => !isOver(job)).toReversed()
          if (active.length === 0)
            return (
              <EmptyState compact title="No jobs running">
                Queued and running jobs appear here with live progress.
              </EmptyState>
            )
          const live = active.filter(({ status }) => status === 'running').slice(0, mostStreams)
          return (
            <ul className="-my-1 divide-y divide-line">
              {active.map((job) => (
                <ActiveJob key={job.id} listed={job} live={live.includes(job)} />
              ))}
            </ul>
          )
        }}
      </Loaded>
    </Card>
  )
}

function ActiveJob({ listed, live }: { listed: Job; live: boolean }) {
  const { data: job = listed } = useQuery({
    queryKey: ['jobs', listed.id],
    queryFn: ({ signal }) => tunery.jobs.get(listed.id, { signal }),
    enabled: live,
    initialData: listed,
    initialDataUpdatedAt: 0,
  })
  const current = live ? job : listed
  const { events, state } = useEvents(listed.id, { enabled: live })
  // What says how well the job does.
  const curve = isReinforcement(listed) ? 'reward' : 'loss'
  const values = useMemo(
    () =>
      events.flatMap(({ type, data }) =>
        type === 'metrics' && typeof data?.[curve] === 'number' ? [data[curve] as number] : [],
      ),
    [events, curve],
  )
  const { metrics } = current
  return (
    <li className="grid gap-2 py-3">
      <div className="flex flex-wrap items-center gap-x-3 gap-y-1">
        <TextLink to="/jobs/$jobId" params={{ jobId: current.id }} quiet className="min-w-0 truncate font-medium">
          {current.name}
        </TextLink>
        <Status status={current.status} />
        <Badge>{current.resolved_config.method.value}</Badge>
        {live && !current.paused && <LiveMark state={state} />}
        <span className="ml-auto text-sm text-muted">{whenText(current)}</span>
      </div>
      {current.status !== 'queued' && (
        <div className="flex items-center gap-4">
          <Progress value={current.progress} label={`Progress of ${current.name}`} className="min-w-0 flex-1" />
          <span className="w-10 text-right text-sm">{formatProgress(current.progress)}</span>
          {values.length > 1 && (
            <Sparkline values={values} label={`${curve === 'loss' ? 'Loss' : 'Reward'} of ${current.name}`} />
          )}
        </div>
      )}
      <p className="flex flex-wrap gap-x-4 text-sm text-muted">
        {metrics.step !== undefined && (
          <span>
            step {metrics.step}
            {metrics.steps_total ? ` of ${metrics.steps_total}` : ''}
          </span>
        )}
        {metrics[curve] !== undefined && (
          <span>
            {curve} {formatNumber(metrics[curve])}
          </span>
        )}
        {metrics.validation_reward !== undefined && (
          <span>held-out reward {formatNumber(metrics.validation_reward)}</span>
        )}
        {metrics.validation_loss !== undefined && <span>validation loss {formatNumber(metrics.validation_loss)}</span>}
        {metrics.tokens_per_second !== undefined && <span>{formatNumber(metrics.tokens_per_second)} tokens/s</span>}
        {current.slowed_by && (
          <span className="text-warn">
            {current.slowed_by === 'serving' ? 'slowed by model requests' : 'slowed by other programs'}
          </span>
        )}
      </p>
    </li>
  )
}

const said: Partial<Record<StreamState, string>> = {
  live: 'live',
  reconnecting: 'reconnecting…',
  connecting: 'connecting…',
}
function LiveMark({ state }: { state: StreamState }) {
  const text = said[state]
  return text ? <span className={state === 'live' ? 'text-xs text-good' : 'text-xs text-warn'}>{text}</span> : null
}
