// Transactions of a worker, which write nothing once another attempt has its work.
import type { Db, Trx } from '../db/open.ts'
import type { Claim, Queue } from './queue.ts'

export interface LeaseContext {
  db: Db
  queue: Queue
  /** Notifies event streams of this ref that there are new events; missing where there are no such streams. */
  notifyEvents?(ref: string): void
}

/** Runs one transaction of a worker. Throws LeaseLost if another attempt has taken over; notifies readers on commit. */
export async function withLease<T>(
  { db, queue, notifyEvents }: LeaseContext,
  claim: Claim,
  write: (trx: Trx) => Promise<T>,
): Promise<T> {
  const result = await db.transaction().execute(async (trx) => {
    await queue.assertLease(trx, claim)
    return write(trx)
  })
  notifyEvents?.(claim.ref)
  return result
}

/** Transactions of one claim, in order, while its work continues. */
export interface LeaseWrites {
  /** Starts `write` after all earlier ones. After a failure the rest is dropped. */
  add(write: (trx: Trx) => Promise<void>): void
  /** Aborts at the first failure, such as a lost lease. Its reason is the error. */
  failed: AbortSignal
  /** Resolves when all writes so far have ended, also if one has failed. */
  ended(): Promise<void>
}

export function createLeaseWrites(context: LeaseContext, claim: Claim): LeaseWrites {
  const failure = new AbortController()
  let last = Promise.resolve()
  return {
    add(write) {
      last = last.then(async () => {
        if (failure.signal.aborted) return
        try {
          await withLease(context, claim, write)
        } catch (error) {
          failure.abort(error)
        }
      })
    },
    failed: failure.signal,
    ended: () => last,
  }
}
