// Guarantees of the durable queue and of migrations, on a real database with a manual clock.
import assert from 'node:assert/strict'
import { mkdtempSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, test as testOf } from 'node:test'
import pino from 'pino'
import { createNotifications } from '../../server/cluster/notifications.ts'
import { migrate } from '../../server/db/migrate.ts'
import { type Db, openDatabase } from '../../server/db/open.ts'
import { createLeaseWrites, createQueue, LeaseLost, lease_ms, type Queue } from '../../server/queue/queue.ts'
import { requeueAfter } from '../../server/queue/retry-policy.ts'
import { createAbortSignals, startWorker } from '../../server/queue/worker.ts'
import { newPostgresDatabase } from '../support/postgres.ts'

let dataDir: string
let postgres: Awaited<ReturnType<typeof newPostgresDatabase>>
let db: Db
let queue: Queue
let time = 1_000_000
const notifications = createNotifications(pino({ level: 'silent' }))
before(async () => {
  dataDir = mkdtempSync(path.join(os.tmpdir(), 'tunery-queue-'))
  postgres = await newPostgresDatabase()
  db = await openDatabase(dataDir, postgres?.url)
  queue = createQueue({ db, server: 'server-1', notifications, now: () => time })
})
after(async () => {
  await db.destroy()
  await postgres?.drop()
  rmSync(dataDir, { recursive: true, force: true })
})
/** A test that begins with an empty queue. No beforeEach: it would run for the other files of this process too. */
const test = (name: string, body: () => Promise<void> | void) =>
  testOf(name, async () => {
    await db.deleteFrom('queue_entries').execute()
    await body()
  })

const enqueue = (ref: string) => db.transaction().execute((trx) => queue.enqueue(trx, 'work', ref))

test('an entry of a rolled back transaction is never claimed', async () => {
  await assert.rejects(
    db.transaction().execute(async (trx) => {
      await queue.enqueue(trx, 'work', 'a')
      throw new Error('no')
    }),
  )
  assert.equal(await queue.claim('work', 'w'), undefined)
})

test('entries are claimed in order, each by one worker, and only of the requested kind', async () => {
  for (const ref of ['a', 'b', 'c']) await enqueue(ref)
  assert.equal(await queue.claim('other', 'w'), undefined)
  const second = await openDatabase(dataDir, postgres?.url)
  const claims = await Promise.all([
    queue.claim('work', 'w1'),
    createQueue({ db: second, server: 'server-2', notifications, now: () => time }).claim('work', 'w2'),
    queue.claim('work', 'w3'),
    queue.claim('work', 'w4'),
  ])
  await second.destroy()
  assert.deepEqual(claims.map((claim) => claim?.ref).sort(), ['a', 'b', 'c', undefined])
})

test('a ref has one live entry; another may follow when it has ended', async () => {
  await enqueue('a')
  await assert.rejects(enqueue('a'), /unique/i)
  const claim = (await queue.claim('work', 'w'))!
  await db.transaction().execute((trx) => queue.finish(trx, claim, 'done'))
  await enqueue('a')
})

test('a renewed lease is not claimed; an expired one is, and its first worker can write nothing more', async () => {
  await enqueue('a')
  const first = (await queue.claim('work', 'w1'))!
  time += lease_ms - 1
  assert.equal(await queue.renewLease(first), true)
  time += lease_ms - 1
  assert.equal(await queue.claim('work', 'w2'), undefined)
  time += 2
  const second = (await queue.claim('work', 'w2'))!
  assert.equal(second.attempt, first.attempt + 1)
  assert.equal(await queue.renewLease(first), false)
  await assert.rejects(
    db.transaction().execute((trx) => queue.assertLease(trx, first)),
    LeaseLost,
  )
  await assert.rejects(
    db.transaction().execute((trx) => queue.finish(trx, first, 'done')),
    LeaseLost,
  )
  await assert.rejects(
    db.transaction().execute((trx) => queue.requeue(trx, first, time)),
    LeaseLost,
  )
  await db.transaction().execute((trx) => queue.finish(trx, second, 'done'))
  assert.equal(await queue.claim('work', 'w3'), undefined)
})

test('a requeued entry waits until its run_at', async () => {
  await enqueue('a')
  const claim = (await queue.claim('work', 'w'))!
  await db.transaction().execute((trx) => queue.requeue(trx, claim, time + 500))
  assert.equal(await queue.claim('work', 'w'), undefined)
  time += 500
  assert.equal((await queue.claim('work', 'w'))?.attempt, 2)
})

test('long work sees whether others of its kind are due, and goes on behind them; that is no attempt', async () => {
  await enqueue('long')
  const claim = (await queue.claim('work', 'w'))!
  assert.equal(await queue.othersWait(claim), false, 'it does not wait for itself')
  await db.transaction().execute((trx) => queue.enqueue(trx, 'other', 'x'))
  assert.equal(await queue.othersWait(claim), false, 'nor for another kind')
  await enqueue('short')
  time += 1
  assert.equal(await queue.othersWait(claim), true)
  await queue.defer(claim, time)
  const short = (await queue.claim('work', 'w'))!
  assert.equal(short.ref, 'short')
  await db.transaction().execute((trx) => queue.requeue(trx, short, time + 1000))
  const again = (await queue.claim('work', 'w'))!
  assert.deepEqual([again.ref, again.attempt], ['long', 1])
  assert.equal(await queue.othersWait(again), false, 'the other one is not due')
})

test('cancel ends a waiting entry, and revokes the lease of a running one', async () => {
  await enqueue('a')
  assert.equal(await db.transaction().execute((trx) => queue.cancel(trx, 'work', 'a')), undefined)
  assert.equal(await queue.claim('work', 'w'), undefined)
  await enqueue('b')
  const claim = (await queue.claim('work', 'w'))!
  assert.equal((await db.transaction().execute((trx) => queue.cancel(trx, 'work', 'b')))?.id, claim.id)
  assert.equal(await queue.renewLease(claim), false)
})

test('writes under a lease run in order, and after a failed one the rest is dropped', async () => {
  await enqueue('a')
  const claim = (await queue.claim('work', 'w'))!
  const notified: string[] = []
  const context = { db, queue, notifyEvents: (ref: string) => notified.push(ref) }
  const writes = createLeaseWrites(context, claim)
  const done: string[] = []
  writes.add(async () => {
    await new Promise((resolve) => setTimeout(resolve, 20))
    done.push('slow')
  })
  writes.add(async () => void done.push('fast'))
  await writes.ended()
  assert.deepEqual(done, ['slow', 'fast'])
  assert.deepEqual(notified, ['a', 'a'])
  assert.equal(writes.failed.aborted, false)
  writes.add(() => Promise.reject(new Error('disk')))
  writes.add(async () => void done.push('dropped'))
  await writes.ended()
  assert.deepEqual(done, ['slow', 'fast'])
  assert.throws(() => writes.failed.throwIfAborted(), /disk/)

  await db.transaction().execute((trx) => queue.cancel(trx, 'work', 'a'))
  const late = createLeaseWrites(context, claim)
  late.add(async () => void done.push('late'))
  await late.ended()
  assert.deepEqual(done, ['slow', 'fast'])
  assert.throws(() => late.failed.throwIfAborted(), LeaseLost)
})

test('requeueAfter records and requeues in one transaction, which a worker without the lease cannot', async () => {
  await enqueue('a')
  const first = (await queue.claim('work', 'w1'))!
  const context = { db, queue, notifyEvents() {}, now: () => time }
  const recorded: number[] = []
  await requeueAfter(context, first, 1000, async (_trx, at) => void recorded.push(at))
  assert.equal(await queue.claim('work', 'w2'), undefined)
  time += 1000
  assert.equal((await queue.claim('work', 'w2'))?.attempt, 2)
  await assert.rejects(
    requeueAfter(context, first, 0, async () => void recorded.push(0)),
    LeaseLost,
  )
  assert.deepEqual(recorded, [time - 1000])
})

test('a worker runs one entry at a time, and stop waits for the handler', async () => {
  for (const ref of ['a', 'b']) await enqueue(ref)
  const seen: string[] = []
  let running = 0
  const worker = startWorker({
    queue,
    kind: 'work',
    name: 'w',
    log: pino({ level: 'silent' }),
    async handle(claim, signal) {
      assert.equal(++running, 1)
      seen.push(claim.ref)
      if (claim.ref === 'b') await new Promise((resolve) => signal.addEventListener('abort', resolve))
      await db.transaction().execute((trx) => queue.finish(trx, claim, 'done'))
      running--
    },
  })
  while (seen.length < 2) await new Promise(setImmediate)
  await worker.close()
  assert.equal(running, 0)
  assert.deepEqual(seen, ['a', 'b'])
})

test('the abort signal of work lasts until the work has ended', () => {
  const signals = createAbortSignals(notifications)
  const signal = signals.get('a')
  assert.equal(signals.get('a'), signal)
  signals.abort('a', 'why')
  assert.equal(signal.reason, 'why')
  assert.equal(signals.get('b').aborted, false)
  signals.clear('a')
  assert.equal(signals.get('a').aborted, false)
})

test('migrations are applied once, and a database of a newer version is refused', async () => {
  assert.deepEqual(await migrate(db), [])
  await db.insertInto('migrations').values({ name: '9999-future', applied_at: 0 }).execute()
  await assert.rejects(migrate(db), /newer Tunery.*9999-future/)
})
