// The thread that writes to the database, with the one connection that does. A sync of the disk, and the wait for
// another process's lock, hold up this thread and not the one that streams answers.
import { parentPort, workerData } from 'node:worker_threads'
import type SQLite from 'better-sqlite3'
import type { QueryResult } from 'kysely'
import { openWriter, runStatement } from './connection.ts'
import type { Reply, Request, WriterSettings } from './thread.ts'

const { file, timeout_ms } = workerData as WriterSettings
let sqlite: SQLite.Database | undefined

const nothing: QueryResult<unknown> = { rows: [] }

function rollback(): void {
  if (!sqlite?.inTransaction) return
  try {
    sqlite.exec('rollback')
  } catch {
    // The disk fails: a connection that is closed has rolled back, and the next statement opens another.
    sqlite.close()
    sqlite = undefined
  }
}

function answer(request: Request): QueryResult<unknown> {
  switch (request.kind) {
    case 'run':
      sqlite ??= openWriter(file, timeout_ms)
      if (sqlite.inTransaction !== request.inside)
        throw new Error(request.inside ? 'the transaction was rolled back' : 'a transaction is still open')
      return runStatement(sqlite, request.sql, request.parameters)
    case 'rollback':
      rollback()
      return nothing
    case 'close':
      parentPort!.close()
      sqlite?.close()
      return nothing
  }
}

parentPort!.on('message', (request: Request) => {
  let reply: Reply
  try {
    reply = { result: answer(request) }
  } catch (error) {
    // An error that crosses threads loses its code.
    const { message, code } = error as { message: string; code?: string }
    reply = { error: { message, code } }
  }
  if (request.kind !== 'close') parentPort!.postMessage(reply)
})
