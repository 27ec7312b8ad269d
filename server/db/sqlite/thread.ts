import { Worker } from 'node:worker_threads'
import SQLite from 'better-sqlite3'
import type { QueryResult } from 'kysely'

export interface WriterThread {
  /** Rejects with what SQLite said, its code included, or with SQLITE_IOERR where the thread has ended. */
  ask(request: Request): Promise<QueryResult<unknown>>
  hasEnded(): boolean
  /** Resolves when the thread has ended, after everything that was asked before. */
  close(): Promise<void>
}

/**
 * One life of the writer's thread. It opens the database at its first statement, and again after an opening that
 * failed.
 */
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
    // Whether a commit that was under way came to be is not known; its caller hears a failure.
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
    ask(request) {
      if (cause) return Promise.reject(cause)
      return new Promise((resolve, reject) => {
        // Throws where a parameter cannot cross, before anything waits.
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

/** What the main thread asks of the writer. Each is answered once, in the order in which they were sent. */
export type Request =
  /**
   * `inside` says whether a transaction is open: where SQLite has ended it on its own, what follows must not be written
   * without it.
   */
  | { kind: 'run'; sql: string; parameters: readonly unknown[]; inside: boolean }
  /** Ends whatever transaction is open. Always succeeds. */
  | { kind: 'rollback' }
  /** Ends the thread. */
  | { kind: 'close' }

export type Reply = { result: QueryResult<unknown> } | { error: { message: string; code?: string } }
