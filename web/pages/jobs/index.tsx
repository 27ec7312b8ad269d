import { useQueryClient } from '@tanstack/react-query'
import { useNavigate, useSearch } from '@tanstack/react-router'
import { FlaskConical, GitCompare, Plus, Search } from 'lucide-react'
import { useMemo, useState, useSyncExternalStore } from 'react'
import type { Job, JobQueryInput } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { plural } from '../../lib/format.ts'
import { usePages } from '../../lib/pages.ts'
import { refresh_ms } from '../../lib/query.ts'
import { useMay } from '../../lib/session.ts'
import { Button, LinkButton } from '../../ui/button.tsx'
import { Select } from '../../ui/choices.tsx'
import { EmptyState, Loaded, Skeleton } from '../../ui/feedback.tsx'
import { Card, Page } from '../../ui/layout.tsx'
import { SearchInput } from '../../ui/search-input.tsx'
import { Table } from '../../ui/table.tsx'
import { ChooseColumns, chosenColumnsOf, useChosenColumns } from './chosen-columns.tsx'
import { columnsOf } from './columns.tsx'
import { useLiveJobs } from './live.ts'

const statuses = ['queued', 'running', 'paused', 'completed', 'failed', 'cancelled'] as const
type JobStatus = (typeof statuses)[number]
const sorts = {
  newest: { label: 'Newest first', query: {} },
  oldest: { label: 'Oldest first', query: { order: 'asc' } },
  name: { label: 'By name', query: { sort: 'name' } },
} as const satisfies Record<string, { label: string; query: JobQueryInput }>
type Sort = keyof typeof sorts

/** Jobs of one chart: it has six colours. */
const comparedMax = 6
const page_rows = 50

const wideWindow = matchMedia('(min-width: 1280px)')
function watchWidth(listener: () => void): () => void {
  wideWindow.addEventListener('change', listener)
  return () => wideWindow.removeEventListener('change', listener)
}

export default function JobsPage() {
  const search = useSearch({ from: '/shell/jobs' })
  const status = statuses.find((each) => each === search.status)
  const sort: Sort = search.sort !== undefined && search.sort in sorts ? (search.sort as Sort) : 'newest'
  const filters: JobQueryInput = {
    ...(status && { status }),
    ...(search.q && { name: search.q.slice(0, 200) }),
    ...(search.metadata?.includes('=') && { metadata: search.metadata }),
    ...sorts[sort].query,
  }
  const filtered = Boolean(status || search.q || search.metadata)
  const mayTrain = useMay('tuning:write')
  const mayRead = useMay('tuning:read')
  const [selected, setSelected] = useState<Set<string>>(new Set())
  const navigate = useNavigate()
  const change = (next: Partial<typeof search>) =>
    navigate({ to: '/jobs', search: (before) => ({ ...before, ...next }), replace: true })

  const queryKey = ['jobs', 'list', { ...filters, limit: page_rows }]
  const pages = useQueryClient().getQueryData<{ pages: unknown[] }>(queryKey)?.pages.length ?? 1
  const { query, rows, more } = usePages(
    queryKey,
    (options) => tunery.jobs.list({ ...filters, limit: page_rows }, options),
    // All pages that are loaded are asked again.
    { enabled: mayRead, refresh_ms: pages > 2 ? 6 * refresh_ms : refresh_ms },
  )
  const { jobs, losses } = useLiveJobs(rows)
  const wide = useSyncExternalStore(watchWidth, () => wideWindow.matches)
  const [added, setAdded] = useChosenColumns()
  const columns = useMemo(
    () => columnsOf({ losses, mayTrain, wide, added: chosenColumnsOf(added) }),
    [losses, mayTrain, wide, added],
  )
  const chosen = jobs.filter(({ id }) => selected.has(id))

  const newJob = mayTrain && (
    <LinkButton to="/jobs/new" variant="primary" icon={<Plus aria-hidden />}>
      New job
    </LinkButton>
  )
  return (
    <Page
      title="Jobs"
      description={
        <>
          All training jobs of this account.
          {mayRead && !mayTrain && ' Your role may look at them, not start or change them.'}
        </>
      }
      actions={newJob}
    >
      {mayRead ? (
        <Card flush>
          <div className="flex flex-wrap items-center gap-2 border-b border-line p-3">
            <SearchInput
              className="min-w-48 flex-1 sm:max-w-xs"
              value={search.q?.slice(0, 200)}
              onChange={(q) => change({ q })}
            />
            <Select<JobStatus | 'all'>
              aria-label="Status"
              className="max-sm:flex-1 sm:w-40"
              value={status ?? 'all'}
              onChange={(next) => change({ status: next === 'all' ? undefined : next })}
              choices={[{ value: 'all', label: 'All statuses' }, ...statuses.map((value) => ({ value, label: value }))]}
            />
            <Select<Sort>
              aria-label="Order"
              className="max-sm:flex-1 sm:w-40"
              value={sort}
              onChange={(next) => change({ sort: next === 'newest' ? undefined : next })}
              choices={Object.entries(sorts).map(([value, { label }]) => ({ value: value as Sort, label }))}
            />
            <Groups jobs={jobs} value={search.metadata} onChange={(metadata) => change({ metadata })} />
            <ChooseColumns jobs={jobs} chosen={added} onChange={setAdded} />
            <Compare chosen={chosen} onClear={() => setSelected(new Set())} />
          </div>
          <Loaded query={query} skeleton={<ListSkeleton />}>
            {() => (
              <Table<Job>
                label="Jobs"
                columns={columns}
                rows={jobs}
                rowId={({ id }) => id}
                link={({ id }) => ({ to: '/jobs/$jobId', params: { jobId: id } })}
                selected={selected}
                onSelect={setSelected}
                more={more}
                empty={
                  filtered ? (
                    <NothingFits onClear={() => change({ status: undefined, q: undefined, metadata: undefined })} />
                  ) : (
                    <First action={newJob} />
                  )
                }
              />
            )}
          </Loaded>
          {more.hasMore && (
            <p className="px-4 pb-3 text-center text-sm text-muted">
              Headers sort the {jobs.length} jobs that are loaded.
            </p>
          )}
        </Card>
      ) : (
        <Card>
          <EmptyState icon={<FlaskConical aria-hidden />} title="No access to jobs">
            An admin or owner of this account can give you a role with the scope tuning:read.
          </EmptyState>
        </Card>
      )}
    </Page>
  )
}

/** Jobs with the same pair of metadata are a group. */
function Groups({
  jobs,
  value,
  onChange,
}: {
  jobs: readonly Job[]
  value: string | undefined
  onChange: (value: string | undefined) => void
}) {
  const pairs = new Set(jobs.flatMap(({ metadata }) => Object.entries(metadata).map((pair) => pair.join('='))))
  if (value) pairs.add(value)
  if (pairs.size === 0) return null
  return (
    <Select
      aria-label="Metadata"
      className="max-sm:flex-1 sm:w-44"
      value={value ?? 'all'}
      onChange={(pair) => onChange(pair === 'all' ? undefined : pair)}
      choices={[
        { value: 'all', label: 'All metadata' },
        ...[...pairs].sort().map((pair) => ({ value: pair, label: pair })),
      ]}
    />
  )
}

function Compare({ chosen, onClear }: { chosen: readonly Job[]; onClear: () => void }) {
  if (chosen.length === 0)
    return <p className="ml-auto text-sm text-muted max-md:hidden">Select jobs to compare their curves.</p>
  const [first, ...others] = chosen.slice(0, comparedMax)
  return (
    <div role="status" className="ml-auto flex flex-wrap items-center gap-2">
      <span className="text-sm text-muted">
        {chosen.length > comparedMax
          ? `${chosen.length} chosen, at most ${comparedMax} are compared`
          : `${chosen.length} chosen`}
      </span>
      <Button size="sm" variant="quiet" onClick={onClear}>
        Clear
      </Button>
      <LinkButton
        size="sm"
        variant="primary"
        icon={<GitCompare aria-hidden />}
        to="/jobs/$jobId"
        params={{ jobId: first!.id }}
        search={{ with: others.length > 0 ? others.map(({ id }) => id).join(',') : undefined }}
      >
        {others.length === 0 ? 'View curves' : `Compare ${plural(others.length + 1, 'job')}`}
      </LinkButton>
    </div>
  )
}

const First = ({ action }: { action: React.ReactNode }) => (
  <EmptyState icon={<FlaskConical aria-hidden />} title="No jobs yet" action={action}>
    A job trains a model on one of your datasets. You watch its loss while it runs, and chat with the result when it is
    done.
  </EmptyState>
)

const NothingFits = ({ onClear }: { onClear: () => void }) => (
  <EmptyState
    icon={<Search aria-hidden />}
    title="No jobs match these filters"
    action={<Button onClick={onClear}>Clear filters</Button>}
  />
)

const ListSkeleton = () => (
  <div className="grid gap-3 p-4" role="status">
    <span className="sr-only">Loading</span>
    {Array.from({ length: 6 }, (_, index) => (
      <Skeleton key={index} className="h-10 w-full" />
    ))}
  </div>
)
