// Writer thread with the only connection that writes. Waits for locks of other processes block this thread, not the
// main thread that streams answers. Who commits syncs the disk afterwards (dialect.ts).
import { parentPort, workerData } from 'node:worker_threads'
import type SQLite from 'better-sqlite3'
import { openWriter, runStatement, type StatementResult } from './connection.ts'
import { answerRequests, type ThreadSettings, type WriteRequest } from './thread.ts'

const { file, timeout_ms } = workerData as ThreadSettings
let sqlite: SQLite.Database | undefined

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

function handle(request: WriteRequest): StatementResult | undefined {
  switch (request.kind) {
    case 'run':
      sqlite ??= openWriter(file, timeout_ms, { syncs: false })
      if (sqlite.inTransaction !== request.inside)
        throw new Error(request.inside ? 'the transaction was rolled back' : 'a transaction is still open')
      return runStatement(sqlite, request.sql, request.parameters)
    case 'rollback':
      rollback()
      return { rows: [] }
    case 'close':
      parentPort!.close()
      sqlite?.close()
      return undefined
  }
}

answerRequests(handle)
