import { Worker } from 'node:worker_threads'
import SQLite from 'better-sqlite3'
import type { QueryResult } from 'kysely'

export interface WriterThread {
  /** Rejects with SQLite's error and code, or with SQLITE_IOERR if the thread has ended. */
  send(request: Request): Promise<QueryResult<unknown>>
  hasEnded(): boolean
  /** Ends the thread after all earlier requests; resolves when it has ended. */
  close(): Promise<void>
}

/** Starts a writer thread. It opens the database at its first statement, and retries if that fails. */
export function startWriter(settings: WriterSettings): WriterThread {
  const worker = new Worker(new URL('./writer.ts', import.meta.url), { workerData: settings })
  const waiting: { resolve: (result: QueryResult<unknown>) => void; reject: (error: Error) => void }[] = []
  const ended = Promise.withResolvers<void>()
  let cause: Error | undefined

  worker.on('message', (reply: Reply) => {
    const { resolve, reject } = waiting.shift()!
    if ('result' in reply) return resolve(reply.result)
    const { message, code } = reply.error
    reject(code === undefined ? new Error(message) : new SQLite.SqliteError(message, code))
  })
  const end = (error?: Error) => {
    // A commit in flight may or may not have succeeded; its caller gets an error.
    cause ??= new SQLite.SqliteError(
      `the thread that writes to the database has ended${error ? `: ${error.message}` : ''}`,
      'SQLITE_IOERR',
    )
    for (const { reject } of waiting.splice(0)) reject(cause)
  }
  worker.on('error', end)
  worker.on('exit', () => {
    end()
    ended.resolve()
  })

  return {
    send(request) {
      if (cause) return Promise.reject(cause)
      return new Promise((resolve, reject) => {
        // Throws if a parameter cannot be cloned, before the request is queued.
        worker.postMessage(request)
        waiting.push({ resolve, reject })
      })
    },
    hasEnded: () => cause !== undefined,
    close() {
      if (!cause) worker.postMessage({ kind: 'close' } satisfies Request)
      return ended.promise
    },
  }
}

export interface WriterSettings {
  file: string
  timeout_ms: number
}

/** Requests to the writer thread. Each gets one reply, in the order of sending. */
export type Request =
  /**
   * `inside`: whether the statement belongs to an open transaction. If SQLite has rolled that back on its own, the
   * statement must fail.
   */
  | { kind: 'run'; sql: string; parameters: readonly unknown[]; inside: boolean }
  /** Rolls back the open transaction, if any. Always succeeds. */
  | { kind: 'rollback' }
  /** Ends the thread. */
  | { kind: 'close' }

export type Reply = { result: QueryResult<unknown> } | { error: { message: string; code?: string } }
