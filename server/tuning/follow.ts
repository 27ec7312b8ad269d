import type { EventEmitter } from 'node:events'
import type { JobEvent } from '../../contract/tuning.ts'
import type { Db } from '../db/open.ts'
import * as store from './store.ts'

const pageSize = 500

export const ended = new Set(['completed', 'failed', 'cancelled'])

/** A job's events after `after`, then new ones as `news` tells of them, until the job has ended or the signal aborts; null is a sign of life. */
export async function* follow(
  { db, news, keepalive_ms }: { db: Db; news: EventEmitter; keepalive_ms: number },
  job_id: string,
  after: number,
  signal: AbortSignal,
): AsyncGenerator<JobEvent | null> {
  let seq = after
  while (!signal.aborted) {
    // Listening begins before reading, so that nothing that is written in between is missed.
    const more = nextNews(news, keepalive_ms, job_id, signal)
    const status = (await store.jobById(db, job_id))?.status
    const events = await store.eventsAfter(db, job_id, seq, pageSize)
    for (const event of events) yield toWire(event)
    seq = events.at(-1)?.seq ?? seq
    if (events.length === pageSize) continue
    if (!status || ended.has(status)) return
    if ((await more) === 'keepalive') yield null
  }
}

function nextNews(news: EventEmitter, keepalive_ms: number, job_id: string, signal: AbortSignal): Promise<'news' | 'keepalive'> {
  return new Promise((resolve) => {
    const done = (what: 'news' | 'keepalive') => {
      clearTimeout(timer)
      news.off(job_id, heard)
      signal.removeEventListener('abort', heard)
      resolve(what)
    }
    const heard = () => done('news')
    const timer = setTimeout(() => done('keepalive'), keepalive_ms)
    news.on(job_id, heard)
    signal.addEventListener('abort', heard)
  })
}

const toWire = (event: store.EventRow): JobEvent => ({
  type: event.type,
  message: event.message,
  seq: event.seq,
  created_at: new Date(event.created_at).toISOString(),
  ...(event.data_json && { data: JSON.parse(event.data_json) }),
})
