// A process with workers of a queue, for postgres.test.ts: `node queue-worker.ts DATABASE_URL SERVER WORKERS`. Each
// entry of the queue becomes a row in `finished`. It runs until its stdin ends.

import { sql } from 'kysely'
import pino from 'pino'
import { openNotifications } from '../../../server/platform/cluster/notifications.ts'
import { openDatabase } from '../../../server/platform/db/open.ts'
import { withLease } from '../../../server/platform/queue/lease-writes.ts'
import { Queue } from '../../../server/platform/queue/queue.ts'
import { startWorker } from '../../../server/platform/queue/worker.ts'

const [database_url, server, workers] = process.argv.slice(2) as [string, string, string]
const log = pino({ level: 'silent' })
const db = await openDatabase('', database_url)
const notifications = await openNotifications(db, log, database_url)
await notifications.start()
const queue = new Queue({ db, server, notifications })
const running = Array.from({ length: Number(workers) }, (_, index) =>
  startWorker({
    queue,
    kind: 'test',
    name: String(index),
    log,
    handle: (claim) =>
      withLease({ db, queue }, claim, async (trx) => {
        await sql`insert into finished (ref, attempt) values (${claim.ref}, ${claim.attempt})`.execute(trx)
        await queue.finish(trx, claim, 'done')
      }),
  }),
)
console.log('ready')
process.stdin.resume()
process.stdin.once('end', async () => {
  await Promise.all(running.map((worker) => worker.close()))
  await notifications.close()
  await db.destroy()
})
