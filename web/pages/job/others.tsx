// Which jobs are drawn beside this one.
import { useQuery } from '@tanstack/react-query'
import { X } from 'lucide-react'
import type { Job } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { IconButton, TextLink } from '../../ui/button.tsx'
import { Combobox } from '../../ui/choices.tsx'
import { Status } from '../../ui/feedback.tsx'
import { type Compared, othersMax } from './compared.ts'

export function AddJob({ job, chosen, onAdd }: { job: Job; chosen: readonly string[]; onAdd: (id: string) => void }) {
  const list = useQuery({
    queryKey: ['jobs', 'list', { limit: 100, for: 'comparison' }],
    queryFn: ({ signal }) => tunery.jobs.list({ limit: 100 }, { signal }),
    staleTime: 60_000,
  })
  const choices = (list.data?.items ?? [])
    .filter(({ id, metrics }) => id !== job.id && !chosen.includes(id) && metrics.step !== undefined)
    .map(({ id, name, status, model_id }) => ({ value: id, label: name, note: `${status}, ${model_id}` }))
  if (chosen.length >= othersMax)
    return <p className="ml-auto max-w-52 text-sm text-muted">At most {othersMax + 1} jobs fit into one chart.</p>
  return (
    <div className="ml-auto w-full sm:w-64">
      <Combobox
        // New for each choice, so that it is empty.
        key={chosen.join()}
        aria-label="Compare with another job"
        placeholder="Compare with another job"
        value={null}
        onChange={(id) => id && onAdd(id)}
        choices={choices}
        empty={list.isPending ? 'Loading…' : 'No other job has curves'}
      />
    </div>
  )
}

/** The other jobs of the chart: a way to each, and out. */
export function Others({ others, onRemove }: { others: readonly Compared[]; onRemove: (id: string) => void }) {
  return (
    <ul aria-label="Compared with" className="flex flex-wrap gap-2">
      {others.map(({ id, job, run, error }) => (
        <li
          key={id}
          className="flex min-w-0 items-center gap-2 rounded-md bg-sunken py-0.5 pr-0.5 pl-2.5 ring-1 ring-line"
        >
          <TextLink to="/jobs/$jobId" params={{ jobId: id }} quiet className="min-w-0 truncate">
            {job?.name ?? id}
          </TextLink>
          {error ? (
            <span className="text-sm text-bad">{error.message}</span>
          ) : !run ? (
            <span className="text-sm text-muted">loading…</span>
          ) : run.loss.length === 0 ? (
            <span className="text-sm text-muted">no step yet</span>
          ) : (
            job && <Status status={job.status} />
          )}
          <IconButton
            size="sm"
            label={`Take ${job?.name ?? id} out of the chart`}
            icon={<X aria-hidden />}
            onClick={() => onRemove(id)}
          />
        </li>
      ))}
    </ul>
  )
}
