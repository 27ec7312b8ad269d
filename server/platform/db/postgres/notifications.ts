// Notifications by LISTEN and NOTIFY.
import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { sql } from 'kysely'
import pg from 'pg'
import type { Db } from '../open.ts'
import { destroy, endWithin } from './silence.ts'

const channelName = 'tunery'
/** Postgres takes less than 8,000 bytes. What is sent is ASCII: ids and kinds, no names. */
const payload_max = 7000
const connect_ms = 5000
/** Between two tries to listen again after the connection was lost. */
const retry_ms = 500
/** It only listens, so a connection that has gone silent shows when it is asked something. */
const ask_ms = 5000

interface Message<T> {
  from: string
  items: T[]
}

/** Sends by the pool of `db`, and listens on a separate connection, which it opens again whenever it is lost. */
export function createPostgresChannel<T extends object>(db: Db, url: string) {
  const from = randomUUID()

  /** As many items at once as a payload holds. */
  function payloads(items: T[]): string[] {
    const text = JSON.stringify({ from, items } satisfies Message<T>)
    if (text.length <= payload_max || items.length === 1) return [text]
    const half = Math.ceil(items.length / 2)
    return [...payloads(items.slice(0, half)), ...payloads(items.slice(half))]
  }

  return {
    async send(items: T[]): Promise<void> {
      for (const payload of payloads(items)) await sql`select pg_notify(${channelName}, ${payload})`.execute(db)
    },

    /** Resolves when it listens, or the first try has failed. */
    async listen(onReceived: (items: T[]) => void, onGap: () => void): Promise<{ close(): Promise<void> }> {
      const closing = new AbortController()
      let client: pg.Client | undefined

      /** Resolves once it listens. `ended` resolves when the connection is lost. */
      async function connect(): Promise<{ ended: Promise<void> }> {
        client = new pg.Client({
          connectionString: url,
          application_name: 'tunery notifications',
          connectionTimeoutMillis: connect_ms,
          query_timeout: connect_ms,
          keepAlive: true,
        })
        const { promise: ended, resolve: end } = Promise.withResolvers<void>()
        client.on('error', () => end())
        client.on('end', () => end())
        client.on('notification', ({ payload }) => {
          const message = JSON.parse(payload!) as Message<T>
          if (message.from !== from) onReceived(message.items)
        })
        await client.connect()
        await client.query(`listen ${channelName}`)
        const listening = client
        const asking = setInterval(() => listening.query('select 1').catch(end), ask_ms).unref()
        void ended.then(() => clearInterval(asking))
        return { ended }
      }

      async function loop(first: PromiseWithResolvers<void>): Promise<void> {
        while (!closing.signal.aborted) {
          try {
            const { ended } = await connect()
            // Notifications of the time before were missed.
            onGap()
            first.resolve()
            await ended
          } catch {
            // Postgres is away.
          }
          first.resolve()
          if (client) destroy(client)
          await sleep(retry_ms, undefined, { signal: closing.signal }).catch(() => {})
        }
      }

      const first = Promise.withResolvers<void>()
      const looping = loop(first)
      await first.promise
      return {
        async close() {
          closing.abort()
          if (client) await endWithin(client)
          await looping
        },
      }
    },
  }
}
