import { parentPort, Worker } from 'node:worker_threads'
import SQLite from 'better-sqlite3'
import type { StatementResult } from './connection.ts'

export interface Thread<R> {
  /** Rejects with SQLite's error and code, or with SQLITE_IOERR if the thread has ended. */
  send(request: R): Promise<StatementResult>
  hasEnded(): boolean
  /** Ends the thread after all earlier requests; resolves when it has ended. */
  close(): Promise<void>
}

export const startWriter = (settings: ThreadSettings) => startThread<WriteRequest>('./writer.ts', settings)
export const startReader = (settings: ThreadSettings) => startThread<ReadRequest>('./reader.ts', settings)

/** Starts a thread. It opens the database at its first statement, and retries if that fails. */
function startThread<R>(script: string, settings: ThreadSettings): Thread<R> {
  const worker = new Worker(new URL(script, import.meta.url), { workerData: settings })
  const waiting: { resolve: (result: StatementResult) => void; reject: (error: Error) => void }[] = []
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
      `a thread of the database has ended${error ? `: ${error.message}` : ''}`,
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
      if (!cause) worker.postMessage(close)
      return ended.promise
    },
  }
}

export interface ThreadSettings {
  file: string
  timeout_ms: number
}

/** Ends the thread. */
type Close = { kind: 'close' }
const close: Close = { kind: 'close' }

/** Requests to the reader thread. `deadline`: unix milliseconds; a read that passes it fails with SQLITE_INTERRUPT. */
export type ReadRequest = { kind: 'read'; sql: string; parameters: readonly unknown[]; deadline: number } | Close

/** Requests to the writer thread. Each gets one reply, in the order of sending. */
export type WriteRequest =
  /**
   * `inside`: whether the statement belongs to an open transaction. If SQLite has rolled that back on its own, the
   * statement must fail.
   */
  | { kind: 'run'; sql: string; parameters: readonly unknown[]; inside: boolean }
  /** Rolls back the open transaction, if any. Always succeeds. */
  | { kind: 'rollback' }
  | Close

type Reply = { result: StatementResult } | { error: { message: string; code?: string | undefined } }

/** Runs in a thread: replies to each request with its result or error, except to the last. */
export function answerRequests<R>(handle: (request: R) => StatementResult | undefined): void {
  parentPort!.on('message', (request: R) => {
    let reply: Reply
    try {
      const result = handle(request)
      if (!result) return
      reply = { result }
    } catch (error) {
      // Errors lose their code when they are cloned to another thread.
      const { message, code } = error as { message: string; code?: string }
      reply = { error: { message, code } }
    }
    parentPort!.postMessage(reply)
  })
}
