// The numbered events of what takes long (a job, an export): appended in the transaction that makes them true, read
// from any number on, and followed by those who wait for more.
import { EventEmitter } from 'node:events'
import { sql } from 'kysely'
import type { Db, Trx } from '../db/open.ts'
import type { JobEvents } from '../db/schema.ts'

export interface NewEvent {
  type: JobEvents['type']
  message: string
  data?: Record<string, unknown>
}
type EventRow = Omit<JobEvents, 'job_id'>

export interface WireEvent<T extends string> {
  type: T
  message: string
  seq: number
  created_at: string
  data?: Record<string, unknown>
}

export interface EventLog {
  /** Appends events in order; their numbers go on from the last. */
  append(trx: Trx, id: string, events: NewEvent[], created_at: number): Promise<void>
  after(db: Db, id: string, seq: number, limit: number): Promise<EventRow[]>
}

/** The log in `table`, whose column `owner` says whose events they are. */
export function createEventLog(table: 'job_events' | 'export_events', owner: 'job_id' | 'export_id'): EventLog {
  const [from, whose] = [sql.table(table), sql.ref(owner)]
  return {
    async append(trx, id, events, created_at) {
      if (events.length === 0) return
      const last = await sql<{
        seq: number | null
      }>`select max(seq) as seq from ${from} where ${whose} = ${id}`.execute(trx)
      const seq = Number(last.rows[0]?.seq ?? 0)
      const rows = events.map(
        ({ type, message, data }, index) =>
          sql`(${id}, ${seq + 1 + index}, ${type}, ${message}, ${data ? JSON.stringify(data) : null}, ${created_at})`,
      )
      await sql`insert into ${from} (${whose}, seq, type, message, data_json, created_at) values ${sql.join(rows)}`.execute(
        trx,
      )
    },
    after: async (db, id, seq, limit) =>
      (
        await sql<EventRow>`select * from ${from} where ${whose} = ${id} and seq > ${seq} order by seq limit ${limit}`.execute(
          db,
        )
      ).rows,
  }
}

const pageSize = 500

/** Tells readers, by the id of what they follow, that there is more. */
export function createNews(): EventEmitter {
  const news = new EventEmitter()
  news.setMaxListeners(0)
  return news
}

interface Followed {
  db: Db
  log: EventLog
  news: EventEmitter
  keepalive_ms: number
  /** Whether no more events will come. */
  ended(): Promise<boolean>
}

/**
 * The events after `after`, then new ones as `news` tells of them, until there will be no more or the signal aborts;
 * null is a sign of life.
 */
export async function* follow<T extends string>(
  { db, log, news, keepalive_ms, ended }: Followed,
  id: string,
  after: number,
  signal: AbortSignal,
): AsyncGenerator<WireEvent<T> | null> {
  let seq = after
  while (!signal.aborted) {
    // Listening begins before reading, so that nothing that is written in between is missed.
    const more = nextNews(news, keepalive_ms, id, signal)
    const over = await ended()
    const events = await log.after(db, id, seq, pageSize)
    for (const event of events) yield toWire<T>(event)
    seq = events.at(-1)?.seq ?? seq
    if (events.length === pageSize) continue
    if (over) return
    if ((await more) === 'keepalive') yield null
  }
}

function nextNews(
  news: EventEmitter,
  keepalive_ms: number,
  id: string,
  signal: AbortSignal,
): Promise<'news' | 'keepalive'> {
  return new Promise((resolve) => {
    const done = (what: 'news' | 'keepalive') => {
      clearTimeout(timer)
      news.off(id, heard)
      signal.removeEventListener('abort', heard)
      resolve(what)
    }
    const heard = () => done('news')
    const timer = setTimeout(() => done('keepalive'), keepalive_ms)
    news.on(id, heard)
    signal.addEventListener('abort', heard)
  })
}

const toWire = <T extends string>(event: EventRow): WireEvent<T> => ({
  type: event.type as string as T,
  message: event.message,
  seq: event.seq,
  created_at: new Date(event.created_at).toISOString(),
  ...(event.data_json && { data: JSON.parse(event.data_json) }),
})

// A blank line keeps proxies from cutting a quiet stream.
export async function* eventLines(events: AsyncGenerator<object | null>): AsyncGenerator<string> {
  for await (const event of events) yield event ? `${JSON.stringify(event)}\n` : '\n'
}

/** The event of a status that something has now. */
export const statusEvent = (status: string, message: string, data: Record<string, unknown> = {}): NewEvent => ({
  type: 'status',
  message,
  data: { status, ...data },
})
