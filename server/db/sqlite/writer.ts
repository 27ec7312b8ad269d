// Writer thread with the only connection that writes. Disk syncs and waits for locks of other processes block this
// thread, not the main thread that streams answers.
import { parentPort, workerData } from 'node:worker_threads'
import type SQLite from 'better-sqlite3'
import type { QueryResult } from 'kysely'
import { openWriter, runStatement } from './connection.ts'
import type { Reply, Request, WriterSettings } from './thread.ts'

const { file, timeout_ms } = workerData as WriterSettings
let sqlite: SQLite.Database | undefined

const emptyResult: QueryResult<unknown> = { rows: [] }

function rollback(): void {
  if (!sqlite?.inTransaction) return
  try {
    sqlite.exec('rollback')
  } catch {
    // The disk fails: closing the connection rolls back, and the next statement opens a new one.
    sqlite.close()
    sqlite = undefined
  }
}

function handle(request: Request): QueryResult<unknown> {
  switch (request.kind) {
    case 'run':
      sqlite ??= openWriter(file, timeout_ms)
      if (sqlite.inTransaction !== request.inside)
        throw new Error(request.inside ? 'the transaction was rolled back' : 'a transaction is still open')
      return runStatement(sqlite, request.sql, request.parameters)
    case 'rollback':
      rollback()
      return emptyResult
    case 'close':
      parentPort!.close()
      sqlite?.close()
      return emptyResult
  }
}

parentPort!.on('message', (request: Request) => {
  let reply: Reply
  try {
    reply = { result: handle(request) }
  } catch (error) {
    // Errors lose their code when they are cloned to another thread.
    const { message, code } = error as { message: string; code?: string }
    reply = { error: { message, code } }
  }
  if (request.kind !== 'close') parentPort!.postMessage(reply)
})
