// What requests used: taken down in a journal as they end, folded into the database in batches.
import path from 'node:path'
import { setImmediate as nextTurn } from 'node:timers/promises'
import type { Logger } from 'pino'
import type { Db } from '../db/open.ts'
import type { Row } from '../db/schema.ts'
import { createTurn } from '../turn.ts'
import { openJournal, readJournal, removeJournal } from './journal.ts'
import type { UsageRecord } from './record.ts'
import * as store from './store.ts'

const fold_ms = 1000
/** Rows read and written at once; between two batches, other work gets its turn. */
const batchRows = 50
/** Batches a transaction: while one is open, whoever else asks the database waits; each costs a sync of the disk at its end. */
const batchesTogether = 20

export interface UsageTotals {
  requests: number
  prompt_tokens: number
  completion_tokens: number
  cached_tokens: number
}

export interface Usage {
  /** Takes down what a request used. Call it before the client has the end of the answer: what it saw complete is never lost then. */
  record(record: UsageRecord): void
  /** Brings what was recorded until now into the database. */
  fold(): Promise<void>
  /** What an account used from one time on and before another, in unix milliseconds; of what has been folded. */
  totals(account_id: string, from?: number, to?: number): Promise<UsageTotals>
  find(account_id: string, request_id: string): Promise<Row<'usage'> | undefined>
  /** Folds what an earlier process left, then about once a second. */
  start(): Promise<void>
  close(): Promise<void>
}

export function createUsage({ db, dataDir, log }: { db: Db; dataDir: string; log: Logger }): Usage {
  const journal = openJournal(path.join(dataDir, 'usage'), log)
  const inTurn = createTurn()
  /** Complete files that are not in the database yet. */
  let files: string[] = []
  let timer: NodeJS.Timeout | undefined
  let running = false

  /**
   * Each file is removed once all of it is in the database, durably. Where the process dies before that, the file is folded again, and
   * those of its rows that are there, known by their requests, change nothing.
   */
  async function foldFiles(): Promise<void> {
    files.push(...journal.rotate())
    while (files.length > 0) {
      const file = files[0]!
      const batches = readJournal(file, batchRows, log)
      while (await foldSome(batches));
      removeJournal(file)
      files = files.slice(1)
    }
  }

  /** Resolves with whether there may be more. */
  function foldSome(batches: Iterator<UsageRecord[]>): Promise<boolean> {
    return db.transaction().execute(async (trx) => {
      for (let count = 0; count < batchesTogether; count++) {
        const { value: rows, done } = batches.next()
        if (done) return false
        await store.insert(trx, rows)
        await nextTurn()
      }
      return true
    })
  }

  async function tick(): Promise<void> {
    try {
      await inTurn(foldFiles)
    } catch (error) {
      log.error({ err: error }, 'usage could not be folded into the database; it stays in the journal and is tried again')
      await journal.sync(files)
    }
    if (running) timer = setTimeout(tick, fold_ms).unref()
  }

  return {
    record: journal.append,
    fold: () => inTurn(foldFiles),
    totals: async (account_id, from = 0, to = Number.MAX_SAFE_INTEGER) => {
      const found = await store.totals(db, account_id, from, to)
      return {
        requests: Number(found.requests),
        prompt_tokens: Number(found.prompt_tokens),
        completion_tokens: Number(found.completion_tokens),
        cached_tokens: Number(found.cached_tokens),
      }
    },
    find: (account_id, request_id) => store.byRequest(db, account_id, request_id),
    async start() {
      running = true
      await tick()
    },
    async close() {
      running = false
      clearTimeout(timer)
      await inTurn(foldFiles).catch((error) => log.error({ err: error }, 'usage could not be folded into the database; the next start folds it'))
      journal.close()
    },
  }
}
