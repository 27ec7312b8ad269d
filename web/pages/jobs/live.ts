// Keeps the running jobs of the list live.
import { useQueries, useQueryClient } from '@tanstack/react-query'
import { useEffect, useMemo } from 'react'
import type { Job, JobEvent } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { isOver, useEvents } from '../../lib/events.ts'

/** Streams of a page; see web/README.md. Further running jobs are refreshed with the list. */
const mostStreams = 2

/** The listed jobs, with what the streams of the running ones say, and the losses of those by id. */
export function useLiveJobs(rows: readonly Job[] | undefined): {
  jobs: readonly Job[]
  losses: ReadonlyMap<string, readonly number[]>
} {
  const client = useQueryClient()
  const ids = useMemo(
    () =>
      (rows ?? [])
        .filter(({ status }) => status === 'running')
        .slice(0, mostStreams)
        .map(({ id }) => id),
    [rows],
  )
  // As many hooks at every render: a missing id opens no stream.
  const first = useEvents(ids[0] ?? '', { enabled: ids[0] !== undefined })
  const second = useEvents(ids[1] ?? '', { enabled: ids[1] !== undefined })
  const fresh = useQueries({
    queries: ids.map((id) => ({
      queryKey: ['jobs', id],
      queryFn: ({ signal }: { signal: AbortSignal }) => tunery.jobs.get(id, { signal }),
    })),
    combine: (results) => results.flatMap(({ data }) => (data ? [data] : [])),
  })
  const ended = fresh.filter(isOver).length
  useEffect(() => {
    if (ended > 0) void client.invalidateQueries({ queryKey: ['jobs', 'list'] })
  }, [client, ended])
  const jobs = useMemo(
    () => (rows ?? []).map((row) => (isOver(row) ? row : (fresh.find(({ id }) => id === row.id) ?? row))),
    [rows, fresh],
  )
  const losses = useMemo(
    () =>
      new Map(
        [first, second].flatMap(({ events }, index) => {
          const id = ids[index]
          return id === undefined ? [] : [[id, lossesOf(events)] as const]
        }),
      ),
    [ids, first, second],
  )
  return { jobs, losses }
}

const drawn = 60

/** As many as a small curve can show. */
function lossesOf(events: readonly JobEvent[]): number[] {
  const all = events.flatMap(({ type, data }) =>
    type === 'metrics' && typeof data?.loss === 'number' ? [data.loss] : [],
  )
  const every = Math.max(1, Math.ceil(all.length / drawn))
  return all.filter((_, index) => index % every === 0 || index === all.length - 1)
}
