// Brings files of the journal into the database, in a thread of its own: reading, checking and writing them, and the
// sync of the disk at the end, would otherwise hold up the streams of the server's.
import { parentPort, workerData } from 'node:worker_threads'
import pino from 'pino'
import { openDatabase } from '../db/open.ts'
import { readJournal, removeJournal } from './journal.ts'
import { addUsage } from './store.ts'

export interface FoldSettings {
  dataDir: string
  log_level: string
}
/** What the thread answers with to the path of a file: nothing where it is folded and removed. */
export type Folded = { error?: { message: string; code: string | undefined } }

/** Rows a transaction: while one is open, whoever else writes waits; each costs a sync of the disk at its end. */
const rowsTogether = 1000

const { dataDir, log_level } = workerData as FoldSettings
const log = pino({ level: log_level }, pino.destination({ dest: 2, sync: true }))
const db = await openDatabase(dataDir)
const port = parentPort!

/**
 * A file is removed once all of it is in the database, durably. Where the process dies before that, the file is folded
 * again, and those of its rows that are there, known by their requests, change nothing.
 */
async function fold(file: string): Promise<void> {
  for (const records of readJournal(file, rowsTogether, log))
    await db.transaction().execute((trx) =>
      addUsage(
        trx,
        records.map((record) => ({ ...record, trained_tokens: 0 })),
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
  const answer: Folded = await fold(file).then(
    () => ({}),
    (error: Error & { code?: string }) => ({ error: { message: error.message, code: error.code } }),
  )
  port.postMessage(answer)
})
