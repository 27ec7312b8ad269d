import type { Db, Trx } from '../db/open.ts'
import type { Claim, Queue } from './queue.ts'

interface Working {
  db: Db
  queue: Queue
  /** Tells readers of the events of what is worked on that there are more. */
  changed(ref: string): void
}

/** One transaction of a worker: refused when another attempt has taken over, told to the readers when it has committed. */
export async function underClaim<T>({ db, queue, changed }: Working, claim: Claim, write: (trx: Trx) => Promise<T>): Promise<T> {
  const result = await db.transaction().execute(async (trx) => {
    await queue.hold(trx, claim)
    return write(trx)
  })
  changed(claim.ref)
  return result
}
