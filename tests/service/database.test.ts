// The server's threaded database: acknowledged writes are durable, and neither syncs nor locks of other processes block
// the main thread.
import assert from 'node:assert/strict'
import { mkdtempSync, rmSync } from 'node:fs'
import { type FileHandle, open } from 'node:fs/promises'
import os from 'node:os'
import path from 'node:path'
import { afterEach, beforeEach, type TestContext, test } from 'node:test'
import type { Worker } from 'node:worker_threads'
import SQLite from 'better-sqlite3'
import { Kysely, sql } from 'kysely'
import { type Db, openThreadedDatabase, type Queryable } from '../../server/platform/db/open.ts'
import { ThreadedSqliteDialect } from '../../server/platform/db/sqlite/dialect.ts'
import { isUniqueViolation } from '../../server/platform/db/unique-violation.ts'
import { allowed } from '../support/allowed-time.ts'
import { until } from '../support/client.ts'
import { withDatabase } from '../support/database.ts'

let dataDir: string
let db: Db
beforeEach(async () => {
  dataDir = mkdtempSync(path.join(os.tmpdir(), 'tunery-database-'))
  db = await openThreadedDatabase(await withDatabase(dataDir), { timeout_ms: 2000 })
})
afterEach(async () => {
  await db.destroy()
  rmSync(dataDir, { recursive: true, force: true })
})

const another = () => new SQLite(path.join(dataDir, 'tunery.db'), { timeout: 0 })
const add = (from: Queryable, name: string) =>
  from.insertInto('accounts').values({ id: name, name, tier: 'free', suspended_at: null, created_at: 1 }).execute()
const names = async (from: Queryable = db) =>
  (await from.selectFrom('accounts').select('name').orderBy('id').execute()).map(({ name }) => name)
const codeOf = (code: string) => (error: Error & { code?: string }) => error.code === code

test('a row with a key that exists is told by its code from other failures', async () => {
  await add(db, 'one')
  const failure = (work: Promise<unknown>) =>
    work.then(
      () => assert.fail('it was written'),
      (error) => error,
    )
  const fails = db.transaction().execute((trx) => add(trx, 'one'))
  assert.equal(isUniqueViolation(await failure(fails)), true)
  assert.equal(isUniqueViolation(await failure(sql`insert into accounts (id) values ('two')`.execute(db))), false)
  assert.equal(isUniqueViolation(new Error('UNIQUE constraint failed')), false)
  assert.equal(isUniqueViolation(Object.assign(new Error('other words'), { code: '23505' })), true)
})

test('a write that waits for another process’s lock blocks neither the event loop nor reads', async () => {
  assert.deepEqual(await names(), [], 'the threads have started')
  const other = another()
  other.exec('begin immediate')
  let written = false
  const writing = add(db, 'late').then(() => {
    written = true
  })
  // A blocked loop or read would take as long as the write may wait, 2 s.
  for (let turn = 0; turn < 50; turn++) {
    const began = performance.now()
    await new Promise((resolve) => setTimeout(resolve, 1))
    assert.deepEqual(await names(), [])
    assert.ok(performance.now() - began < allowed(1000), `it took ${performance.now() - began} ms`)
  }
  assert.equal(written, false)
  other.exec('rollback')
  other.close()
  await writing
  assert.deepEqual(await names(), ['late'])
})

test('an awaited write is visible to the next read, in this process and in others', async () => {
  const other = another()
  for (let i = 0; i < 20; i++) {
    await add(db, `account ${10 + i}`)
    assert.equal((await names()).at(-1), `account ${10 + i}`)
    assert.equal(other.prepare('select count(*) n from accounts').pluck().get(), i + 1)
  }
  other.close()
})

test('foreign keys are enforced, and no commit waits for a sync inside the writer thread', async () => {
  const setting = async (name: string) =>
    Object.values((await sql.raw<object>(`pragma ${name}`).execute(db)).rows[0]!)[0]
  assert.deepEqual(
    [await setting('journal_mode'), await setting('synchronous'), await setting('foreign_keys')],
    ['wal', 1, 1],
  )
})

/** Replaces the sync of files until the end of the test. */
async function onSync(t: TestContext, sync: () => Promise<void>): Promise<void> {
  const handle = await open(path.join(dataDir, 'tunery.db'))
  t.mock.method(Object.getPrototypeOf(handle) as FileHandle, 'datasync', sync)
  await handle.close()
}

test('a write is acknowledged only once it is on the disk; writes at once share a sync', async (t) => {
  await add(db, 'before')
  let syncs = 0
  let finish: (() => void) | undefined
  await onSync(t, () => {
    syncs++
    return new Promise((resolve) => {
      finish = resolve
    })
  })
  const acknowledged: string[] = []
  const writing = Array.from({ length: 16 }, (_, index) =>
    (index % 2 ? add(db, `row ${index}`) : db.transaction().execute((trx) => add(trx, `row ${index}`))).then(() =>
      acknowledged.push(`row ${index}`),
    ),
  )
  await until('all to be committed', async () => (await names()).length === 17)
  assert.deepEqual(acknowledged, [], 'none is on the disk yet')
  assert.equal(syncs, 1)
  const all = Promise.all(writing)
  const finishing = setInterval(() => finish?.(), 1)
  await all
  clearInterval(finishing)
  assert.equal(syncs, 2, 'those that were committed during the first sync share the second')
})

test('a statement that changes nothing needs no sync, but waits for the writes that it has seen', async (t) => {
  let syncs = 0
  let finish = () => {}
  await onSync(t, () => {
    syncs++
    return new Promise((resolve) => {
      finish = resolve
    })
  })
  const update = () => db.updateTable('accounts').set({ tier: 'free' }).where('id', '=', 'nobody').execute()
  await update()
  await db.deleteFrom('accounts').where('id', '=', 'nobody').returning('id').execute()
  await sql`with none as (select id from accounts) select id from none`.execute(db)
  assert.equal(syncs, 0, 'nor does a query that is written as text')
  const added = add(db, 'a')
  await until('the row to be committed', async () => (await names()).length === 1)
  let seen = false
  const again = db
    .insertInto('accounts')
    .values({ id: 'a', name: 'a', tier: 'free', suspended_at: null, created_at: 1 })
    .onConflict((conflict) => conflict.doNothing())
    .execute()
    .then(() => {
      seen = true
    })
  await until('the sync to begin', async () => syncs === 1)
  assert.equal(seen, false)
  const finishing = setInterval(() => finish(), 1)
  await Promise.all([added, again])
  await update()
  clearInterval(finishing)
  assert.ok(syncs <= 2)
})

test('a write that could not be synced fails with a code of SQLite', async (t) => {
  await onSync(t, () => Promise.reject(new Error('EIO: i/o error, fdatasync')))
  await assert.rejects(add(db, 'a'), codeOf('SQLITE_IOERR_FSYNC'))
  await assert.rejects(
    db.transaction().execute((trx) => add(trx, 'b')),
    codeOf('SQLITE_IOERR_FSYNC'),
  )
})

test('a failed transaction leaves nothing, and uncommitted writes are visible only inside it', async () => {
  await assert.rejects(
    db.transaction().execute(async (trx) => {
      await add(trx, 'a')
      assert.deepEqual(await names(trx), ['a'])
      assert.deepEqual(await names(), [])
      throw new Error('no')
    }),
    /^Error: no$/,
  )
  assert.deepEqual(await names(), [])
})

test('transactions and single writes run one at a time, in order', async () => {
  const writes = Array.from({ length: 12 }, (_, i) => {
    const name = `w${10 + i}`
    if (i % 2) return add(db, name)
    return db.transaction().execute(async (trx) => {
      const before = (await names(trx)).length
      await new Promise((resolve) => setImmediate(resolve))
      await add(trx, name)
      assert.equal((await names(trx)).length, before + 1)
    })
  })
  await Promise.all(writes)
  const inOrder = await sql<{ name: string }>`select name from accounts order by rowid`.execute(db)
  assert.deepEqual(
    inOrder.rows.map(({ name }) => name),
    await names(),
  )
})

test('errors keep SQLite’s code and message; counts and returned rows are correct', async () => {
  await add(db, 'a')
  await assert.rejects(
    add(db, 'a'),
    (error: Error) => codeOf('SQLITE_CONSTRAINT_PRIMARYKEY')(error) && /UNIQUE/.test(error.message),
  )
  await assert.rejects(sql`select nothing`.execute(db), codeOf('SQLITE_ERROR'))
  await assert.rejects(
    db
      .insertInto('users')
      .values({ id: 'u', account_id: 'none', name: 'u', email: null, role: 'owner', removed_at: null, created_at: 1 })
      .execute(),
    codeOf('SQLITE_CONSTRAINT_FOREIGNKEY'),
  )
  await assert.rejects(add(db, Symbol('a') as never))
  await assert.rejects(add(db, true as never), /bind/)
  await add(db, 'b')
  const changed = await db.updateTable('accounts').set({ created_at: 9_007_199_254_740_991 }).executeTakeFirst()
  assert.equal(changed.numUpdatedRows, 2n)
  const inserted = await db
    .insertInto('queue_entries')
    .values({
      kind: 'k',
      ref: 'r',
      status: 'waiting',
      run_at: 1,
      attempt: 0,
      worker: null,
      lease_until: null,
      created_at: 1,
    })
    .executeTakeFirst()
  assert.equal(inserted.insertId, 1n)
  assert.deepEqual(await db.deleteFrom('accounts').where('id', '=', 'b').returning(['id', 'created_at']).execute(), [
    { id: 'b', created_at: 9_007_199_254_740_991 },
  ])
  assert.deepEqual(await names(), ['a'])
})

test('a transaction that SQLite has rolled back accepts no more writes', async () => {
  const full = db.transaction().execute(async (trx) => {
    await add(trx, 'before')
    await sql`rollback`.execute(trx)
    await add(trx, 'after')
  })
  await assert.rejects(full, /rolled back/)
  assert.deepEqual(await names(), [])
  await add(db, 'next')
  assert.deepEqual(await names(), ['next'])
})

test('a write that waits too long for a lock fails with SQLITE_BUSY, and the next write works', async () => {
  const other = another()
  other.exec('begin immediate')
  await Promise.all([
    assert.rejects(add(db, 'single'), codeOf('SQLITE_BUSY')),
    assert.rejects(
      db.transaction().execute((trx) => add(trx, 'several')),
      codeOf('SQLITE_BUSY'),
    ),
  ])
  other.exec('commit')
  other.close()
  await add(db, 'single')
  assert.deepEqual(await names(), ['single'])
})

test('a read that an exclusive lock blocks waits in the writer thread', async () => {
  await add(db, 'a')
  await db.destroy()
  const other = another()
  other.pragma('locking_mode = exclusive')
  other.exec("insert into accounts (id, name, tier, created_at) values ('b', 'b', 'free', 1)")
  db = new Kysely({ dialect: new ThreadedSqliteDialect({ file: path.join(dataDir, 'tunery.db'), timeout_ms: 10_000 }) })
  const reading = names()
  await new Promise((resolve) => setTimeout(resolve, 50))
  other.close()
  assert.deepEqual(await reading, ['a', 'b'])
})

test('closing writes everything that is pending and removes the write-ahead log', async () => {
  const writes = Array.from({ length: 20 }, (_, i) => add(db, `a${i}`))
  await Promise.all(writes)
  await db.destroy()
  const other = new SQLite(path.join(dataDir, 'tunery.db'), { readonly: true })
  assert.equal(other.prepare('select count(*) from accounts').pluck().get(), 20)
  other.close()
})

test('when the writer thread dies, pending requests fail, its transaction is lost, a new one starts', async () => {
  const workers: Worker[] = []
  const seen = (worker: Worker) => void workers.push(worker)
  process.on('worker', seen)
  try {
    await db.destroy()
    db = await openThreadedDatabase(dataDir, { timeout_ms: 2000 })
    await add(db, 'before')
    let inside = false
    const broken = db.transaction().execute(async (trx) => {
      await add(trx, 'lost')
      inside = true
      await until('the thread to end', async () => {
        const { error } = await names(trx).then(
          () => ({ error: undefined }),
          (error) => ({ error }),
        )
        return error
      })
      // The new thread must not run it outside of the transaction.
      await add(trx, 'lost too')
    })
    const next = add(db, 'next')
    await until('the transaction to have begun', () => inside)
    await workers[0]!.terminate()
    await assert.rejects(broken, codeOf('SQLITE_IOERR'))
    await next
    assert.equal(workers.length, 2)
    assert.deepEqual(await names(), ['before', 'next'])
  } finally {
    process.off('worker', seen)
  }
})
