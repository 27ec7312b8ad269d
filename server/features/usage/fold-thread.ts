// Worker thread that folds journal files into the database. On the main thread, parsing, writing and the final fsync
// would stall the response streams.
import { parentPort, workerData } from 'node:worker_threads'
import pino from 'pino'
import { openDatabase } from '../../platform/db/open.ts'
import { addUsage } from './add-usage.ts'
import { readJournal, removeJournal } from './journal.ts'

export interface FoldSettings {
  dataDir: string
  database_url: string | undefined
  log_level: string
}
/** The reply to a file path: no `error` once the file is folded and removed. */
export type FoldResult = { error?: { message: string; code: string | undefined } }

/** A larger transaction blocks other writers for longer; a smaller one costs more fsyncs. */
const rowsPerTransaction = 1000

const { dataDir, database_url, log_level } = workerData as FoldSettings
const log = pino({ level: log_level }, pino.destination({ dest: 2, sync: true }))
const db = await openDatabase(dataDir, database_url)
const port = parentPort!

/**
 * Removes the file once all its rows are committed. After a crash the file is folded again; rows that are already there
 * (by request id) are skipped.
 */
async function fold(file: string): Promise<void> {
  for (const records of readJournal(file, rowsPerTransaction, log))
    await db.transaction().execute((trx) =>
      addUsage(
        trx,
        records.map((record) => ({ ...record, first_token_ms: record.first_token_ms ?? null, trained_tokens: 0 })),
        Date.now(),
      ),
    )
  removeJournal(file)
}

port.on('message', async (file: string | null) => {
  if (file === null) {
    await db.destroy()
    port.close()
    return
  }
  const answer: FoldResult = await fold(file).then(
    () => ({}),
    (error: Error & { code?: string }) => ({ error: { message: error.message, code: error.code } }),
  )
  port.postMessage(answer)
})
