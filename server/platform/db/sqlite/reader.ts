// Reader thread for lists. The time to read one grows with an account's data and would block the main thread. Each has
// a deadline: `before_deadline()`, a condition that every list has, is evaluated for each row that SQLite visits.
import { parentPort, workerData } from 'node:worker_threads'
import SQLite from 'better-sqlite3'
import { openReader, runStatement } from './connection.ts'
import { answerRequests, type ReadRequest, type ThreadSettings } from './thread.ts'

const { file } = workerData as ThreadSettings
let sqlite: SQLite.Database | undefined
let deadline = 0

/** Throws once the deadline has passed. */
function beforeDeadline(): 1 {
  if (Date.now() >= deadline) throw new SQLite.SqliteError('the list passed its deadline', 'SQLITE_INTERRUPT')
  return 1
}

function open(): SQLite.Database {
  const opened = openReader(file)
  opened.function('before_deadline', { deterministic: false }, beforeDeadline)
  return opened
}

answerRequests<ReadRequest>((request) => {
  if (request.kind === 'close') {
    parentPort!.close()
    sqlite?.close()
    return undefined
  }
  deadline = request.deadline
  // It may have passed while earlier lists were read.
  beforeDeadline()
  sqlite ??= open()
  return runStatement(sqlite, request.sql, request.parameters)
})
