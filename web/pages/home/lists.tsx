// The tables of home, in a file of their own: the rest of the page does not wait for it.
import type { UseQueryResult } from '@tanstack/react-query'
import { useMemo } from 'react'
import type { Deployment, Job, Page } from '../../../sdk/index.ts'
import { isOver } from '../../lib/events.ts'
import { formatNumber } from '../../lib/format.ts'
import { ModelText } from '../../parts/names.tsx'
import { LinkButton, TextLink } from '../../ui/button.tsx'
import { Badge, EmptyState, Loaded, Status } from '../../ui/feedback.tsx'
import { Card } from '../../ui/layout.tsx'
import { Table } from '../../ui/table.tsx'
import { RelativeTime } from '../../ui/values.tsx'

const servedColumns = [
  { id: 'name', header: 'Name', cell: (deployment: Deployment) => deployment.name, grow: true },
  { id: 'status', header: 'Status', cell: (deployment: Deployment) => <Status status={deployment.status} /> },
  { id: 'model', header: 'Model', cell: (deployment: Deployment) => <ModelText id={deployment.model} />, from: 'md' },
  {
    id: 'changed',
    header: 'Updated',
    align: 'right',
    cell: (deployment: Deployment) => <RelativeTime time={deployment.updated_at} />,
    from: 'sm',
  },
] as const

/** The names that clients call. */
function Served({ query }: { query: UseQueryResult<Page<Deployment>> }) {
  const empty = (
    <EmptyState compact title="No deployments yet" action={<LinkButton to="/deployments">View deployments</LinkButton>}>
      A deployment is a stable name that your code calls. You can switch its model at any time.
    </EmptyState>
  )
  return (
    <Card
      title="Deployments"
      actions={query.data?.has_more && <TextLink to="/deployments">All deployments</TextLink>}
      flush
    >
      <Loaded query={query} skeleton={<div className="h-40" />}>
        {({ items }) => (
          <Table
            label="Deployments"
            columns={servedColumns}
            rows={items}
            rowId={({ id }) => id}
            link={({ name }) => ({ to: '/deployments/$name', params: { name } })}
            empty={empty}
          />
        )}
      </Loaded>
    </Card>
  )
}

const recentColumns = [
  { id: 'name', header: 'Job', cell: (job: Job) => job.name, grow: true },
  { id: 'status', header: 'Status', cell: (job: Job) => <Status status={job.status} /> },
  { id: 'method', header: 'Method', cell: (job: Job) => <Badge>{job.resolved_config.method.value}</Badge>, from: 'md' },
  {
    id: 'loss',
    header: 'Validation loss',
    align: 'right',
    cell: (job: Job) => formatNumber(job.metrics.validation_loss),
    from: 'md',
  },
  {
    id: 'ended',
    header: 'Finished',
    align: 'right',
    cell: (job: Job) => <RelativeTime time={job.finished_at} />,
    from: 'sm',
  },
] as const

function RecentJobs({ query }: { query: UseQueryResult<Page<Job>> }) {
  const over = useMemo(() => query.data?.items.filter(isOver).slice(0, 5) ?? [], [query.data])
  if (over.length === 0) return null
  return (
    <Card title="Recent jobs" actions={<TextLink to="/jobs">All jobs</TextLink>} flush>
      <Table
        label="Recent jobs"
        columns={recentColumns}
        rows={over}
        rowId={({ id }) => id}
        link={({ id }) => ({ to: '/jobs/$jobId', params: { jobId: id } })}
      />
    </Card>
  )
}

export default function Lists({
  jobs,
  deployments,
}: {
  jobs: UseQueryResult<Page<Job>>
  deployments: UseQueryResult<Page<Deployment>>
}) {
  return (
    <>
      <Served query={deployments} />
      <RecentJobs query={jobs} />
    </>
  )
}
