// Live events of a job, a line of JSON each, through lost connections.
import { useQueryClient } from '@tanstack/react-query'
import { useEffect, useRef, useState } from 'react'
import type { Job, JobEvent } from '../../sdk/index.ts'
import { TuneryConnectionError, TuneryError } from '../../sdk/index.ts'
import { tunery } from './api.ts'

/**
 * `connecting`: no answer yet. `live`: events arrive as they happen. `reconnecting`: the connection was lost and is
 * taken up again behind the last event. `ended`: the job has ended and all its events are here. `failed`: see `error`.
 */
export type StreamState = 'connecting' | 'live' | 'reconnecting' | 'ended' | 'failed'

export interface EventsState {
  /** In order, without gaps, from the first one on. */
  events: readonly JobEvent[]
  state: StreamState
  error?: Error | undefined
}

/** Events that arrive together, such as a job's whole past, are shown together. */
const flush_ms = 100
const longestWait_ms = 10_000

/**
 * The events of a job, from its first one, live until it has ended. Each change of its status or metrics refreshes the
 * cached job (`['jobs', id]`), so that a page needs no polling. `enabled: false` opens no stream: a browser has few
 * connections to one server.
 */
export function useEvents(jobId: string, { enabled = true }: { enabled?: boolean } = {}): EventsState {
  const client = useQueryClient()
  const [value, setValue] = useState<EventsState>({ events: [], state: 'connecting' })
  const seen = useRef<{ id: string; events: JobEvent[] }>({ id: jobId, events: [] })

  useEffect(() => {
    if (!enabled) return
    if (seen.current.id !== jobId) seen.current = { id: jobId, events: [] }
    const { events } = seen.current
    const stop = new AbortController()
    let state: StreamState = 'connecting'
    let timer: number | undefined
    let refreshed = 0
    const show = (error?: Error) => {
      clearTimeout(timer)
      timer = undefined
      if (!stop.signal.aborted) setValue({ events: [...events], state, ...(error && { error }) })
    }
    const showSoon = () => {
      timer ??= window.setTimeout(show, flush_ms)
    }
    const enter = (next: StreamState, error?: Error) => {
      if (next === state && !error) return
      state = next
      show(error)
    }
    const refresh = () => client.invalidateQueries({ queryKey: ['jobs', jobId], exact: true })

    async function follow(): Promise<void> {
      for (let broken = 0; ; broken++) {
        try {
          const options = { signal: stop.signal, maxRetries: 0, onConnection: () => enter('live') }
          const after = events.at(-1)?.seq ?? 0
          for await (const event of tunery.jobs.events(jobId, { after }, options)) {
            broken = 0
            events.push(event)
            showSoon()
            // What the job itself says changes with its status at once, with its metrics once a second.
            if (event.type === 'status' || (event.type !== 'log' && Date.now() - refreshed > 1000)) {
              refreshed = Date.now()
              void refresh()
            }
          }
          // A stopping service ends its streams too: only the job says whether it has ended.
          const job = await tunery.jobs.get(jobId, { signal: stop.signal })
          client.setQueryData(['jobs', jobId], job)
          if (isOver(job)) return enter('ended')
        } catch (error) {
          if (stop.signal.aborted) return
          if (!passes(error)) return enter('failed', error as Error)
        }
        enter('reconnecting')
        await wait(Math.min(longestWait_ms, 500 * 2 ** broken), stop.signal)
        if (stop.signal.aborted) return
      }
    }
    void follow()
    return () => {
      stop.abort()
      clearTimeout(timer)
    }
  }, [client, jobId, enabled])

  return value
}

export const isOver = ({ status }: Pick<Job, 'status'>): boolean =>
  status === 'completed' || status === 'failed' || status === 'cancelled'

const passes = (error: unknown) =>
  error instanceof TuneryConnectionError ||
  error instanceof TypeError ||
  (error instanceof TuneryError && (error.status >= 500 || error.status === 429))

/** Waits, at most until the page is seen again or the network is back. */
function wait(wait_ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer)
      removeEventListener('online', done)
      document.removeEventListener('visibilitychange', done)
      resolve()
    }
    const timer = setTimeout(done, wait_ms)
    signal.addEventListener('abort', done, { once: true })
    addEventListener('online', done)
    document.addEventListener('visibilitychange', done)
  })
}
