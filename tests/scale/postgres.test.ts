// The queue on Postgres under load and crashes: nothing is lost, and nothing is done twice.
import assert from 'node:assert/strict'
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { type Kysely, sql } from 'kysely'
import pino from 'pino'
import { openNotifications } from '../../server/platform/cluster/notifications.ts'
import { type Db, openDatabase } from '../../server/platform/db/open.ts'
import { Queue } from '../../server/platform/queue/queue.ts'
import { until } from '../support/client.ts'
import { postgresTest, startPostgres } from '../support/postgres.ts'
import { startApp } from '../support/service.ts'

let postgres: Awaited<ReturnType<typeof startPostgres>>
before(async () => {
  if (!postgresTest.skip) postgres = await startPostgres()
})
after(() => postgres?.stop())

const count = async (db: Kysely<never> | Db, what: string) =>
  Number((await sql.raw<{ n: number }>(`select count(${what}) as n from finished`).execute(db as Db)).rows[0]!.n)

function startWorkers(index: number): ChildProcess {
  const program = path.join(import.meta.dirname, 'support/queue-worker.ts')
  return spawn(process.execPath, [program, postgres.url, `srv_${index}`, '10'], { stdio: ['pipe', 'pipe', 'inherit'] })
}

test(
  '10,000 queued jobs, 50 workers in five processes, Postgres and a process killed: each is done once',
  postgresTest,
  async () => {
    const jobs = 10_000
    const log = pino({ level: 'silent' })
    let db = await openDatabase('', postgres.url)
    await sql`create table finished (ref text not null, attempt integer not null)`.execute(db)
    const notifications = await openNotifications(db, log, postgres.url)
    const queue = new Queue({ db, server: 'srv_test', notifications })
    for (let first = 0; first < jobs; first += 500)
      await db.transaction().execute(async (trx) => {
        for (let index = first; index < first + 500; index++)
          await queue.enqueue(trx, 'test', `job ${index}`, `account ${index % 20}`)
      })
    const workers = [0, 1, 2, 3, 4].map(startWorkers)
    const began = performance.now()
    await until('a third to be done', async () => (await count(db, '*')) > jobs / 3)
    await postgres.kill()
    await postgres.start()
    workers[0]!.kill('SIGKILL')
    db = await openDatabase('', postgres.url)
    await until('all to be done', async () => (await count(db, '*')) >= jobs)
    const took_s = (performance.now() - began) / 1000
    assert.deepEqual([await count(db, '*'), await count(db, 'distinct ref')], [jobs, jobs])
    const open = await db.selectFrom('queue_entries').select('ref').where('status', '<>', 'done').execute()
    assert.deepEqual(open, [])
    for (const worker of workers.slice(1)) {
      const ended = once(worker, 'exit')
      worker.stdin!.end()
      assert.deepEqual(await ended, [0, null], 'it has lived through the restart')
    }
    await notifications.close()
    await db.destroy()
    console.log(`${jobs} jobs in ${took_s.toFixed(1)} s`)
  },
)

test('creating requests at once share syncs of the disk', postgresTest, async () => {
  const app = await startApp({ TUNERY_DATABASE_URL: postgres.url })
  try {
    const syncs = async () => {
      await sql`select pg_stat_force_next_flush()`.execute(app.db)
      return Number((await sql<{ n: number }>`select wal_sync as n from pg_stat_wal`.execute(app.db)).rows[0]!.n)
    }
    const settled = async () => {
      // Each connection reports its counts when it is idle for a second.
      let last = await syncs()
      await until('the counts to settle', async () => {
        await new Promise((resolve) => setTimeout(resolve, 1500))
        const now = await syncs()
        const same = now === last
        last = now
        return same
      })
      return last
    }
    const before = await settled()
    for (let round = 0; round < 20; round++)
      await Promise.all(
        Array.from({ length: 16 }, (_, index) => app.api('POST', '/keys', { name: `${round} ${index}` })),
      )
    const count = (await settled()) - before
    console.log(`${count} syncs for 320 requests, 16 at once`)
    assert.ok(count < 320)
  } finally {
    await app.stop()
  }
})
