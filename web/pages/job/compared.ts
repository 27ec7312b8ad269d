// The curves of other jobs, to draw beside those of this one.
import { useQueries, useQueryClient } from '@tanstack/react-query'
import type { Job, JobEvent } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { isOver } from '../../lib/events.ts'
import { type Run, runOf } from './run.ts'

/** Jobs beside this one: a chart has six colours. */
export const othersMax = 5
/**
 * A stream that was silent for so long has told its past: what is live comes twice a second. Longer, it ends anyway.
 */
const silence_ms = 400
const longest_ms = 8000
const again_ms = 10_000

export interface Compared {
  id: string
  job?: Job | undefined
  run?: Run | undefined
  error?: Error | undefined
}

/**
 * The events that there are behind the known ones. Not a stream that stays open: a browser has few connections to a
 * server, and this page's own job has one.
 */
async function readEvents(id: string, known: readonly JobEvent[], signal: AbortSignal): Promise<JobEvent[]> {
  const events = [...known]
  const silent = new AbortController()
  const hush = () => silent.abort()
  let timer: ReturnType<typeof setTimeout> | undefined
  let last: ReturnType<typeof setTimeout> | undefined
  try {
    const options = {
      signal: AbortSignal.any([signal, silent.signal]),
      maxRetries: 0,
      onConnection: () => {
        timer = setTimeout(hush, silence_ms)
        last = setTimeout(hush, longest_ms)
      },
    }
    for await (const event of tunery.jobs.events(id, { after: known.at(-1)?.seq ?? 0 }, options)) {
      events.push(event)
      clearTimeout(timer)
      timer = setTimeout(hush, silence_ms)
    }
  } catch (error) {
    if (!silent.signal.aborted || signal.aborted) throw error
  } finally {
    clearTimeout(timer)
    clearTimeout(last)
  }
  return events
}

/** Running ones are asked again every 10 s. */
export function useCompared(ids: readonly string[]): Compared[] {
  const client = useQueryClient()
  const jobs = useQueries({
    queries: ids.map((id) => ({
      queryKey: ['jobs', id],
      queryFn: ({ signal }: { signal: AbortSignal }) => tunery.jobs.get(id, { signal }),
      refetchInterval: ({ state }: { state: { data?: Job | undefined } }) =>
        state.data && !isOver(state.data) ? again_ms : false,
    })),
  })
  const pasts = useQueries({
    queries: ids.map((id, index) => {
      const job = jobs[index]?.data
      // Its end is a part of the key: what came last is read once more.
      const queryKey = ['jobs', id, 'events', job ? isOver(job) : undefined]
      return {
        queryKey,
        enabled: job !== undefined,
        queryFn: ({ signal }: { signal: AbortSignal }) =>
          readEvents(id, client.getQueryData<JobEvent[]>(queryKey) ?? [], signal),
        staleTime: Number.POSITIVE_INFINITY,
        refetchInterval: job && !isOver(job) ? again_ms : (false as const),
      }
    }),
  })
  return ids.map((id, index) => ({
    id,
    job: jobs[index]?.data,
    run: memoRun(pasts[index]?.data),
    error: jobs[index]?.error ?? pasts[index]?.error ?? undefined,
  }))
}

const runs = new WeakMap<readonly JobEvent[], Run>()
/** The same events give the same object, so that a chart is not redrawn. */
function memoRun(events: readonly JobEvent[] | undefined): Run | undefined {
  if (!events) return undefined
  let run = runs.get(events)
  if (!run) {
    run = runOf(events)
    runs.set(events, run)
  }
  return run
}
