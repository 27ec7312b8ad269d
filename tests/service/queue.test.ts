// Guarantees of the durable queue and of migrations, on a real database with a manual clock.
import assert from 'node:assert/strict'
import { mkdtempSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, test as testOf } from 'node:test'
import { sql } from 'kysely'
import pino from 'pino'
import { createNotifications } from '../../server/platform/cluster/notifications.ts'
import { isPostgres } from '../../server/platform/db/dialect.ts'
import { migrate } from '../../server/platform/db/migrate.ts'
import { type Db, openDatabase } from '../../server/platform/db/open.ts'
import { acquireSlotOrDefer } from '../../server/platform/queue/account-slots.ts'
import { createLeaseWrites } from '../../server/platform/queue/lease-writes.ts'
import { type Claim, LeaseLost, lease_ms, Queue } from '../../server/platform/queue/queue.ts'
import { requeueAfter } from '../../server/platform/queue/retry-policy.ts'
import { nextEntry } from '../../server/platform/queue/turns.ts'
import { createAbortSignals, startWorker } from '../../server/platform/queue/worker.ts'
import { allowed } from '../support/allowed-time.ts'
import { until } from '../support/client.ts'
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
  queue = new Queue({ db, server: 'server-1', notifications, now: () => time })
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

const enqueue = (ref: string, account = 'mine') =>
  db.transaction().execute((trx) => queue.enqueue(trx, 'work', ref, account))

test('an entry of a rolled back transaction is never claimed', async () => {
  await assert.rejects(
    db.transaction().execute(async (trx) => {
      await queue.enqueue(trx, 'work', 'a', 'mine')
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
    new Queue({ db: second, server: 'server-2', notifications, now: () => time }).claim('work', 'w2'),
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

test('long work sees whether others of its kind are due, and continues behind them; that is no attempt', async () => {
  await enqueue('long')
  const claim = (await queue.claim('work', 'w'))!
  assert.equal(await queue.othersWait(claim), false, 'it does not wait for itself')
  await db.transaction().execute((trx) => queue.enqueue(trx, 'other', 'x', 'mine'))
  assert.equal(await queue.othersWait(claim), false, 'nor for another kind')
  await enqueue('short')
  time += 1
  assert.equal(await queue.othersWait(claim), true)
  await queue.defer(claim, time, 'behind')
  const short = (await queue.claim('work', 'w'))!
  assert.equal(short.ref, 'short')
  await db.transaction().execute((trx) => queue.requeue(trx, short, time + 1000))
  const again = (await queue.claim('work', 'w'))!
  assert.deepEqual([again.ref, again.attempt], ['long', 1])
  assert.equal(await queue.othersWait(again), false, 'the other one is not due')
})

/** Claims, and ends what it claims, until nothing is due. Resolves with the refs in order. */
async function drain(): Promise<string[]> {
  const refs: string[] = []
  for (let claim = await queue.claim('work', 'w'); claim; claim = await queue.claim('work', 'w')) {
    refs.push(claim.ref)
    time += 1
    await db.transaction().execute((trx) => queue.finish(trx, claim!, 'done'))
  }
  return refs
}

test('accounts take turns, and each has its entries in order, however many another account has', async () => {
  for (const ref of ['a1', 'a2', 'a3', 'a4']) await enqueue(ref, 'a')
  for (const ref of ['b1', 'b2']) await enqueue(ref, 'b')
  await enqueue('c1', 'c')
  assert.deepEqual(await drain(), ['a1', 'b1', 'c1', 'a2', 'b2', 'a3', 'a4'])
  // Who was served last is remembered.
  await enqueue('a5', 'a')
  await enqueue('b3', 'b')
  assert.deepEqual(await drain(), ['b3', 'a5'])
})

test('the account with the fewest running entries goes first, whoever was served last', async () => {
  for (const ref of ['a1', 'a2', 'a3']) await enqueue(ref, 'a')
  for (let index = 0; index < 2; index++) {
    await queue.claim('work', `w${index}`)
    time += 1
  }
  await enqueue('b1', 'b')
  const last = (await queue.claim('work', 'w3'))!
  assert.equal(last.ref, 'b1')
  await db.transaction().execute((trx) => queue.finish(trx, last, 'done'))
  time += 1
  await enqueue('b2', 'b')
  await enqueue('c1', 'c')
  const idle = { idle_accounts_only: true }
  assert.equal((await queue.claim('work', 'w3', idle))!.ref, 'c1')
  assert.equal((await queue.claim('work', 'w3'))!.ref, 'b2', 'two of the other account run')
  assert.equal(await queue.claim('work', 'w4', idle), undefined, 'each account has work that runs')
})

test('work that is tried again keeps turn and place; what could not begin keeps the turn to come', async () => {
  for (const ref of ['a1', 'a2']) await enqueue(ref, 'a')
  await enqueue('b1', 'b')
  const killed = (await queue.claim('work', 'w'))!
  await db.transaction().execute((trx) => queue.requeue(trx, killed, time))
  const again = (await queue.claim('work', 'w'))!
  assert.deepEqual([again.ref, again.attempt], ['a1', 2])
  // A dead server's too.
  time += lease_ms + 1
  const taken = (await queue.claim('work', 'w'))!
  assert.deepEqual([taken.ref, taken.attempt], ['a1', 3])
  // After the end of the turn it keeps its place among those of its account.
  time = taken.turn_until
  await db.transaction().execute((trx) => queue.requeue(trx, taken, time))
  const other = (await queue.claim('work', 'w'))!
  assert.equal(other.ref, 'b1')
  await queue.defer(other, time + 100, 'unused')
  time += 1
  const a1 = (await queue.claim('work', 'w'))!
  assert.equal(a1.ref, 'a1')
  await db.transaction().execute((trx) => queue.finish(trx, a1, 'done'))
  time += 100
  assert.deepEqual(await drain(), ['b1', 'a2'])
})

test('work without a free slot waits a tenth of its time so far, from a second to half a minute', async () => {
  await enqueue('a')
  const without = { queue, acquireSlot: async () => undefined, now: () => time }
  for (const [waited_ms, delay_ms] of [
    [0, 1_000],
    [50_000, 5_000],
    [600_000, 30_000],
  ] as const) {
    const claim = (await queue.claim('work', 'w'))!
    assert.equal(claim.attempt, 1, 'no attempt was spent')
    const work = { account_id: 'mine', created_at: time - waited_ms }
    assert.equal(await acquireSlotOrDefer(without, claim, work), undefined)
    time += delay_ms - 1
    assert.equal(await queue.claim('work', 'w'), undefined)
    time += 1
  }
  // Its turn is unused: what its account enqueues later does not pass it.
  await enqueue('b')
  const claim = (await queue.claim('work', 'w'))!
  assert.equal(claim.ref, 'a')
  const release = () => {}
  const granted = { ...without, acquireSlot: async () => release }
  assert.equal(await acquireSlotOrDefer(granted, claim, { account_id: 'mine', created_at: time }), release)
  assert.equal(typeof (await acquireSlotOrDefer(without, claim, undefined)), 'function', 'deleted work needs none')
  assert.equal((await queue.claim('work', 'w'))?.ref, 'b', 'it was not deferred')
})

test('of live entries it is known who has them, and when each account was last served', async () => {
  for (const [ref, account] of [
    ['a1', 'a'],
    ['b1', 'b'],
    ['a2', 'a'],
  ] as const)
    await enqueue(ref, account)
  const claim = (await queue.claim('work', 'w'))!
  const claimed_at = time
  time += 10
  const { entries, served } = await queue.pending('work')
  assert.deepEqual(entries.map(({ ref, account_id, status }) => [ref, account_id, status]).sort(), [
    ['a1', 'a', 'leased'],
    ['a2', 'a', 'waiting'],
    ['b1', 'b', 'waiting'],
  ])
  assert.deepEqual([claim.ref, ...served].flat(), ['a1', 'a', claimed_at, 'b', 0])
})

test('eight jobs of twelve hours in all delay the job of another account by one time slice', async () => {
  const slice_ms = 900_000
  const hours = 3_600_000
  const left = new Map([...'12345678'].map((name) => [`a${name}`, 1.5 * hours]))
  for (const ref of left.keys()) await enqueue(ref, 'free')
  const began = time
  let started: number | undefined
  const finished: string[] = []
  while (finished.length < 9) {
    const claim = (await queue.claim('work', 'w', { turn_ms: slice_ms }))!
    // The other account comes an hour after the first job has begun.
    if (time - began > hours && !left.has('b')) {
      left.set('b', 60_000)
      await enqueue('b', 'paying')
    }
    if (claim.ref === 'b') started = time
    while (left.get(claim.ref)! > 0) {
      time += 60_000
      left.set(claim.ref, left.get(claim.ref)! - 60_000)
      if (time - began > hours && !left.has('b')) {
        left.set('b', 60_000)
        await enqueue('b', 'paying')
      }
      if (time >= claim.turn_until && (await queue.giveWay(claim))) break
    }
    const done = left.get(claim.ref)! <= 0
    if (done) finished.push(claim.ref)
    await db
      .transaction()
      .execute((trx) => (done ? queue.finish(trx, claim, 'done') : queue.requeue(trx, claim, time, 'passed')))
  }
  assert.ok(started! - began <= hours + slice_ms, `it began after ${(started! - began) / 60_000} minutes`)
  assert.equal(finished[0], 'b')
  assert.deepEqual(
    finished.slice(1),
    [...'12345678'].map((name) => `a${name}`),
    'the others keep their order',
  )
})

test('of the work that runs on all servers one piece gives way for each account that waits', async () => {
  const second = await openDatabase(dataDir, postgres?.url)
  const elsewhere = new Queue({ db: second, server: 'server-2', notifications, now: () => time })
  const queues = [queue, elsewhere, queue]
  /** How many of three that run give way, if all look at once. */
  const giveWay = async () =>
    (await Promise.all(running.map((claim, index) => queues[index]!.giveWay(claim)))).filter(Boolean).length
  const running: Claim[] = []
  try {
    for (const ref of ['a1', 'a2', 'a3', 'a4']) await enqueue(ref, 'a')
    for (const queue of queues) running.push((await queue.claim('work', 'w'))!)
    assert.equal(await giveWay(), 0, 'nobody waits')
    for (const ref of ['b1', 'b2']) await enqueue(ref, 'b')
    assert.equal(await giveWay(), 1)
    assert.equal(await giveWay(), 0, 'the place is promised')
    await enqueue('c1', 'c')
    assert.equal(await giveWay(), 1)
    assert.equal(await giveWay(), 0)
    // Nor does another while the place is free and not yet taken, nor once it is.
    await db.transaction().execute((trx) => queue.requeue(trx, running.shift()!, time, 'passed'))
    assert.equal(await giveWay(), 0)
    const b1 = (await queue.claim('work', 'w'))!
    assert.equal(b1.ref, 'b1')
    assert.equal(await giveWay(), 0)
    // The one that was to give way to `c` died: another does.
    const pass = async (ms: number, alive: Claim[]) => {
      time += ms
      for (const claim of alive) assert.ok(await queue.renewLease(claim))
    }
    await pass(300_000, [...running, b1])
    assert.equal(await giveWay(), 1)
    await pass(lease_ms + 1, running)
    assert.equal(await giveWay(), 1, 'work of a dead server waits too')
  } finally {
    await second.destroy()
  }
})

test('a claim reads an index of accounts and places, with 100,000 entries in the queue', async () => {
  const text = (expression: string) => sql.raw(`cast(${expression} as text)`)
  await sql`with recursive numbers (n) as (select 0 union all select n + 1 from numbers where n < 99999)
    insert into queue_entries (kind, ref, account_id, status, run_at, place, attempt, created_at)
    select 'work', ${text('n')}, ${text('n % 50')}, 'waiting', 0, n, 0, 0 from numbers`.execute(db)
  if (isPostgres(db)) await sql`analyze queue_entries`.execute(db)
  const query = sql`${isPostgres(db) ? sql`explain` : sql`explain query plan`} ${nextEntry(db, 'work', time)}`
  const plan = (await query.execute(db)).rows.map((row) => Object.values(row as object).join(' ')).join('\n')
  assert.match(plan, /queue_entries_places/)
  assert.doesNotMatch(plan, /SCAN queue_entries|Seq Scan on queue_entries/, plan)
  const began = performance.now()
  const claims = []
  for (let count = 0; count < 50; count++) {
    claims.push((await queue.claim('work', 'w'))!)
    time += 1
  }
  const each_ms = (performance.now() - began) / claims.length
  assert.equal(new Set(claims.map(({ account_id }) => account_id)).size, 50)
  assert.ok(each_ms < 50, `a claim took ${each_ms} ms`)
})

test('the work of a suspended account is not claimed, nor given way to; the installation’s is', async () => {
  await db
    .insertInto('accounts')
    .values({ id: 'bad', name: 'b', tier: 'free', suspended_at: 1, created_at: 0 })
    .execute()
  try {
    await enqueue('of-bad', 'bad')
    assert.equal(await queue.claim('work', 'w'), undefined)
    await enqueue('mine')
    const mine = (await queue.claim('work', 'w'))!
    assert.equal(mine.ref, 'mine')
    assert.equal(await queue.othersWait(mine), false)
    assert.equal(await queue.giveWay(mine), false)
    assert.deepEqual(
      (await queue.pending('work')).entries.map(({ ref }) => ref),
      ['mine'],
    )
    const claim = (await queue.claim('work', 'w', { suspended_too: true }))!
    assert.equal(claim.ref, 'of-bad')
    await queue.defer(claim)
    await db.updateTable('accounts').set({ suspended_at: null }).where('id', '=', 'bad').execute()
    assert.equal(await queue.othersWait(mine), true)
    assert.equal((await queue.claim('work', 'w'))!.ref, 'of-bad')
  } finally {
    await db.deleteFrom('accounts').where('id', '=', 'bad').execute()
  }
})

test('work that runs ends with the suspension of its account, and continues as the same attempt', async () => {
  await db
    .insertInto('accounts')
    .values({ id: 'bad', name: 'b', tier: 'free', suspended_at: null, created_at: 0 })
    .execute()
  const suspend = (suspended_at: number | null) =>
    db.updateTable('accounts').set({ suspended_at }).where('id', '=', 'bad').execute()
  await enqueue('a', 'bad')
  const attempts: Claim[] = []
  const worker = startWorker({
    queue,
    kind: 'work',
    log: pino({ level: 'silent' }),
    async handle(claim, signal) {
      attempts.push(claim)
      await new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason)))
    },
  })
  const entry = db.selectFrom('queue_entries').select('status').where('ref', '=', 'a')
  try {
    while (attempts.length < 1) await new Promise(setImmediate)
    await suspend(1)
    while ((await entry.executeTakeFirstOrThrow()).status !== 'waiting') await new Promise(setImmediate)
    await suspend(null)
    queue.wake()
    while (attempts.length < 2) await new Promise(setImmediate)
    assert.deepEqual(
      attempts.map(({ attempt }) => attempt),
      [1, 1],
    )
  } finally {
    await worker.close()
    await db.deleteFrom('accounts').where('id', '=', 'bad').execute()
  }
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

test('work that nobody told of is found within a second, by one look for the workers of all kinds', async () => {
  const claims = new Map<string, number>()
  class CountingQueue extends Queue {
    override claim(kind: string, ...rest: [string]) {
      claims.set(kind, (claims.get(kind) ?? 0) + 1)
      return super.claim(kind, ...rest)
    }
  }
  const counting = new CountingQueue({ db, server: 'server-1', notifications, now: () => time })
  const handled: string[] = []
  let tell = () => {}
  const handle = async (claim: Claim) => {
    await db.transaction().execute((trx) => counting.finish(trx, claim, 'done'))
    handled.push(claim.ref)
    tell()
  }
  const kinds = ['work', 'other', 'third', 'fourth']
  const log = pino({ level: 'silent' })
  const workers = kinds.map((kind) => startWorker({ queue: counting, kind, log, handle }))
  for (const [ref, asked] of [
    ['a', 1],
    ['b', 3],
  ] as const) {
    // It has found nothing, and waits.
    await until('all to wait', () => kinds.every((kind) => claims.has(kind)) && claims.get('work') === asked)
    const done = new Promise<void>((resolve) => {
      tell = resolve
    })
    await enqueue(ref)
    const enqueued_at = performance.now()
    await done
    assert.ok(performance.now() - enqueued_at < allowed(1000) + 500)
  }
  assert.deepEqual(handled, ['a', 'b'])
  for (const kind of kinds.slice(1)) assert.equal(claims.get(kind), 1, `${kind} was not asked for again`)
  const began = performance.now()
  await Promise.all(workers.map((worker) => worker.close()))
  assert.ok(performance.now() - began < allowed(500), 'a worker that waits ends at once')
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
