import { createMutex } from '../../../lib/mutex.ts'
import type { WriterLock } from './applications.ts'

/** Advisory lock of the writer of Serve's applications. */
const lockKey = 7_326_419_002

/**
 * One writer at a time over all servers of a database; without one, in this process. On a separate connection: a
 * transaction would make all other writes wait, and a killed server's lock ends with its connection.
 */
export function createWriterLock(database_url: string | undefined): WriterLock {
  const mutex = createMutex()
  if (!database_url?.startsWith('postgres')) return mutex
  return (work) =>
    mutex(async () => {
      const { default: pg } = await import('pg')
      const client = new pg.Client({ connectionString: database_url, connectionTimeoutMillis: 5000, keepAlive: true })
      client.on('error', () => {})
      await client.connect()
      try {
        await client.query('select pg_advisory_lock($1)', [lockKey])
        return await work()
      } finally {
        await client.end().catch(() => {})
      }
    })
}
