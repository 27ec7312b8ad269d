import { useQuery } from '@tanstack/react-query'
import { useNavigate, useParams, useSearch } from '@tanstack/react-router'
import { FlaskConical } from 'lucide-react'
import { lazy, type ReactNode, Suspense, useMemo, useRef } from 'react'
import type { Job, JobEvent } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { type EventsState, isOver, useEvents } from '../../lib/events.ts'
import { isReinforcement } from '../../lib/jobs.ts'
import { useMay } from '../../lib/session.ts'
import { EmptyState, Loaded, Skeleton, SkeletonLines } from '../../ui/feedback.tsx'
import { Card, Page, Tabs } from '../../ui/layout.tsx'
import { Actions } from './actions.tsx'
import { Checkpoints } from './checkpoints.tsx'
import { isLogged, Log } from './log.tsx'
import { Result } from './result.tsx'
import { RolloutBrowser } from './rollouts.tsx'
import { HighestLossRows } from './rows.tsx'
import { type Run, RunReader } from './run.ts'
import { Samples } from './samples.tsx'
import { StatusCard } from './status.tsx'

// The library of the curves comes behind what the job is doing.
const Curves = lazy(() => import('./curves.tsx'))
// The texts of every setting come from the contract.
const Config = lazy(() => import('./config.tsx'))

const address = '/shell/jobs/$jobId'

export default function JobPage() {
  const { jobId } = useParams({ from: address })
  const mayRead = useMay('tuning:read')
  const query = useQuery({
    queryKey: ['jobs', jobId],
    queryFn: ({ signal }) => tunery.jobs.get(jobId, { signal }),
    enabled: mayRead,
    // A stream keeps a running job fresh; the place in the queue changes without an event of this job.
    refetchInterval: ({ state }) => (state.data && !isOver(state.data) ? 10_000 : false),
  })
  const job = query.data
  return (
    <Page
      title={job?.name ?? 'Job'}
      back={{ to: '/jobs', label: 'Jobs' }}
      description={job?.description && <span className="whitespace-pre-line">{job.description}</span>}
      actions={job && <Actions job={job} />}
    >
      {mayRead ? (
        <Loaded query={query} skeleton={<JobSkeleton />}>
          {(loaded) => <JobBody key={loaded.id} job={loaded} />}
        </Loaded>
      ) : (
        <Card>
          <EmptyState icon={<FlaskConical aria-hidden />} title="No access to jobs">
            Ask an admin or owner of this account for a role that can view jobs.
          </EmptyState>
        </Card>
      )}
    </Page>
  )
}

/** What the events say. Only those that are new are read. */
function useRun(events: readonly JobEvent[]): Run {
  const state = useRef({ reader: new RunReader(), count: 0 })
  return useMemo(() => {
    if (events.length < state.current.count) state.current = { reader: new RunReader(), count: 0 }
    const { reader, count } = state.current
    state.current.count = events.length
    return reader.read(events.slice(count))
  }, [events])
}

function JobBody({ job }: { job: Job }) {
  const stream = useEvents(job.id)
  const run = useRun(stream.events)
  return (
    <div className="grid grid-cols-[minmax(0,1fr)] gap-4">
      <StatusCard job={job} run={run} stream={stream} />
      {job.status === 'completed' && <Result job={job} />}
      <Parts job={job} stream={stream} run={run} />
    </div>
  )
}

function Parts({ job, stream, run }: { job: Job; stream: EventsState; run: Run }) {
  const { tab, with: others, step, split } = useSearch({ from: address })
  const navigate = useNavigate()
  const change = (
    next: Partial<Record<'tab' | 'with' | 'split', string | undefined>> & { step?: number | undefined },
  ) =>
    navigate({
      to: '/jobs/$jobId',
      params: { jobId: job.id },
      search: (before) => ({ ...before, ...next }),
      replace: true,
    })
  const compared = (others ?? '').split(',').filter((id) => id && id !== job.id)
  const tabs: { value: string; label: ReactNode; count?: number | undefined; panel: ReactNode }[] = [
    {
      value: 'curves',
      label: 'Curves',
      panel: (
        <Suspense fallback={<CurvesSkeleton />}>
          <Curves
            job={job}
            run={run}
            state={stream.state}
            compared={compared}
            onCompare={(ids) => change({ with: ids.length > 0 ? ids.join(',') : undefined })}
          />
        </Suspense>
      ),
    },
    ...(isReinforcement(job)
      ? [
          {
            value: 'rollouts',
            label: 'Rollouts',
            panel: (
              <RolloutBrowser
                job={job}
                chosen={{ step, split: split === 'validation' || split === 'training' ? split : undefined }}
                onChoose={change}
              />
            ),
          },
        ]
      : [
          { value: 'samples', label: 'Sample answers', panel: <Samples job={job} samples={run.samples} /> },
          { value: 'rows', label: 'Highest-loss rows', panel: <HighestLossRows job={job} /> },
        ]),
    {
      value: 'checkpoints',
      label: 'Checkpoints',
      panel: <Checkpoints job={job} written={run.checkpoints} rewards={run.figures.validation_reward} />,
    },
    { value: 'log', label: 'Log', count: countLogged(stream.events), panel: <Log events={stream.events} /> },
    {
      value: 'config',
      label: 'Settings',
      panel: (
        <Suspense fallback={<CurvesSkeleton />}>
          <Config job={job} />
        </Suspense>
      ),
    },
  ]
  const shown = tabs.some(({ value }) => value === tab) ? tab! : 'curves'
  return (
    <Tabs
      label="Parts of the job"
      value={shown}
      onChange={(next) => change({ tab: next === 'curves' ? undefined : next })}
      tabs={tabs}
    />
  )
}

const countLogged = (events: readonly JobEvent[]) => events.reduce((sum, event) => sum + (isLogged(event) ? 1 : 0), 0)

const JobSkeleton = () => (
  <div className="grid gap-4">
    <Card>
      <SkeletonLines lines={4} />
    </Card>
    <CurvesSkeleton />
  </div>
)
const CurvesSkeleton = () => <Skeleton className="h-96 w-full" />
