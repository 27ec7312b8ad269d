// Event streams of jobs and exports: numbered events, appended in the transaction of the change, readable from any
// sequence number, and followed live.

import { EventEmitter } from 'node:events'
import { sql } from 'kysely'
import { isoTime } from '../../../lib/utc-day.ts'
import type { Notifications } from '../cluster/notifications.ts'
import { fromJson } from '../db/json.ts'
import type { Db, Trx } from '../db/open.ts'
import type { JobEvents } from '../db/schema.ts'

export interface NewEvent {
  type: JobEvents['type']
  message: string
  data?: Record<string, unknown>
}
type EventRow = Omit<JobEvents, 'job_id'>

interface EventResponse<T extends string> {
  type: T
  message: string
  seq: number
  created_at: string
  data?: Record<string, unknown>
}

export interface EventStream {
  /** Appends events in order, numbered without gaps after the last one. */
  append(trx: Trx, id: string, events: NewEvent[], created_at: number): Promise<void>
  after(db: Db, id: string, seq: number, limit: number): Promise<EventRow[]>
}

/** The event stream in `table`; the column `owner` has the id of the job or export. */
export function createEventStream(table: 'job_events' | 'export_events', owner: 'job_id' | 'export_id'): EventStream {
  const [from, ownerColumn] = [sql.table(table), sql.ref(owner)]
  return {
    async append(trx, id, events, created_at) {
      if (events.length === 0) return
      const last = await sql<{
        seq: number | null
      }>`select max(seq) as seq from ${from} where ${ownerColumn} = ${id}`.execute(trx)
      const seq = Number(last.rows[0]?.seq ?? 0)
      const rows = events.map(
        ({ type, message, data }, index) =>
          sql`(${id}, ${seq + 1 + index}, ${type}, ${message}, ${data ? JSON.stringify(data) : null}, ${created_at})`,
      )
      await sql`insert into ${from} (${ownerColumn}, seq, type, message, data_json, created_at)
        values ${sql.join(rows)}`.execute(trx)
    },
    after: async (db, id, seq, limit) =>
      (
        await sql<EventRow>`select * from ${from} where ${ownerColumn} = ${id} and seq > ${seq}
          order by seq limit ${limit}`.execute(db)
      ).rows,
  }
}

const pageSize = 500

/** Tells readers that a job, an export or a dataset has new events or another status. */
export interface ChangeNotifier {
  notify(id: string): void
  /** Adds a listener of the changes of one object. Returns the function that removes it. */
  onChange(id: string, listener: () => void): () => void
}

export function createChangeNotifier(notifications: Notifications): ChangeNotifier {
  const listeners = new EventEmitter().setMaxListeners(0)
  notifications.on('change', (id) => {
    for (const each of id === undefined ? listeners.eventNames() : [id]) listeners.emit(each)
  })
  return {
    notify: (id) => notifications.publish('change', id),
    onChange(id, listener) {
      listeners.on(id, listener)
      return () => void listeners.off(id, listener)
    },
  }
}

interface FollowOptions {
  db: Db
  events: EventStream
  notifier: ChangeNotifier
  keepalive_ms: number
  /** Resolves with true when no more events will come. */
  ended(): Promise<boolean>
}

/**
 * Yields the events after number `after`, then new ones as they come, until `ended` or the signal aborts. Yields null
 * as a keepalive.
 */
export async function* follow<T extends string>(
  { db, events, notifier, keepalive_ms, ended }: FollowOptions,
  id: string,
  after: number,
  signal: AbortSignal,
): AsyncGenerator<EventResponse<T> | null> {
  let seq = after
  while (!signal.aborted) {
    // Listen before reading, so that an event written in between is not missed.
    const more = nextChange(notifier, keepalive_ms, id, signal)
    const over = await ended()
    const page = await events.after(db, id, seq, pageSize)
    for (const event of page) yield toResponse<T>(event)
    seq = page.at(-1)?.seq ?? seq
    if (page.length === pageSize) continue
    if (over) return
    if ((await more) === 'keepalive') yield null
  }
}

function nextChange(
  notifier: ChangeNotifier,
  keepalive_ms: number,
  id: string,
  signal: AbortSignal,
): Promise<'change' | 'keepalive'> {
  return new Promise((resolve) => {
    const done = (what: 'change' | 'keepalive') => {
      clearTimeout(timer)
      removeListener()
      signal.removeEventListener('abort', changed)
      resolve(what)
    }
    const changed = () => done('change')
    const timer = setTimeout(() => done('keepalive'), keepalive_ms)
    const removeListener = notifier.onChange(id, changed)
    signal.addEventListener('abort', changed)
  })
}

const toResponse = <T extends string>(event: EventRow): EventResponse<T> => ({
  type: event.type as string as T,
  message: event.message,
  seq: event.seq,
  created_at: isoTime(event.created_at),
  ...(event.data_json && { data: fromJson(event.data_json) }),
})

/** The event for a change of status. */
export const statusEvent = (status: string, message: string, data: Record<string, unknown> = {}): NewEvent => ({
  type: 'status',
  message,
  data: { status, ...data },
})
