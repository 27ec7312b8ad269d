import { useQuery } from '@tanstack/react-query'
import { Plus } from 'lucide-react'
import { lazy, Suspense } from 'react'
import { tunery } from '../../lib/api.ts'
import { refresh_ms } from '../../lib/query.ts'
import { useMay } from '../../lib/session.ts'
import { LinkButton } from '../../ui/button.tsx'
import { Skeleton } from '../../ui/feedback.tsx'
import { Page } from '../../ui/layout.tsx'
import { FirstRun } from './first-run.tsx'
import { RunningJobs } from './jobs.tsx'
import { SetupProgress } from './setup.tsx'
import { Today } from './today.tsx'

const Lists = lazy(() => import('./lists.tsx'))

export default function HomePage() {
  const mayTrain = useMay('tuning:write')
  const jobs = useQuery({
    queryKey: ['jobs', 'list', { limit: 20 }],
    queryFn: ({ signal }) => tunery.jobs.list({ limit: 20 }, { signal }),
    refetchInterval: refresh_ms,
  })
  const deployments = useQuery({
    queryKey: ['deployments', 'list', { limit: 6 }],
    queryFn: ({ signal }) => tunery.deployments.list({ limit: 6 }, { signal }),
    refetchInterval: 2 * refresh_ms,
  })
  return (
    <Page
      title="Home"
      actions={
        mayTrain && (
          <LinkButton to="/jobs/new" variant="primary" icon={<Plus aria-hidden />}>
            New job
          </LinkButton>
        )
      }
    >
      <div className="grid gap-4">
        <SetupProgress />
        <FirstRun jobs={jobs.data?.items} deployments={deployments.data?.items} />
        <div className="grid items-start gap-4 xl:grid-cols-[minmax(0,1fr)_22rem]">
          <div className="grid min-w-0 gap-4">
            <RunningJobs query={jobs} />
            <Suspense fallback={<Skeleton className="h-48 w-full" />}>
              <Lists jobs={jobs} deployments={deployments} />
            </Suspense>
          </div>
          <Today />
        </div>
      </div>
    </Page>
  )
}
