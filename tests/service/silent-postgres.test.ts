// Connections to Postgres that go silent, and servers that became standbys: requests fail soon with 503 and work again.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { Kysely, sql } from 'kysely'
import { databaseAway } from '../../server/platform/db/dialect.ts'
import type { Db } from '../../server/platform/db/open.ts'
import { InTurnPostgresDialect } from '../../server/platform/db/postgres/dialect.ts'
import { createPostgresChannel } from '../../server/platform/db/postgres/notifications.ts'
import { allowed } from '../support/allowed-time.ts'
import { until } from '../support/client.ts'
import { newPostgresDatabase } from '../support/postgres.ts'
import { startSilentLink } from '../support/silent-link.ts'

const onPostgres = { skip: process.env.TEST_DATABASE_URL ? false : 'runs on Postgres: set TEST_DATABASE_URL' }
/** Checks of silence take 4 s; a kept-alive connection would take a quarter of an hour. */
const soon_ms = 12_000

let database: NonNullable<Awaited<ReturnType<typeof newPostgresDatabase>>>
let link: Awaited<ReturnType<typeof startSilentLink>>
let url: string
let db: Db
before(async () => {
  if (onPostgres.skip) return
  database = (await newPostgresDatabase())!
  const address = new URL(database.url)
  link = await startSilentLink({ host: address.hostname, port: Number(address.port || 5432) })
  address.hostname = '127.0.0.1'
  address.port = String(link.port)
  url = address.href
  db = new Kysely({ dialect: new InTurnPostgresDialect(url) })
})
after(async () => {
  await db?.destroy()
  link?.close()
  await database?.drop()
})

const read = () => sql<{ one: number }>`select 1 as one`.execute(db)
const write = () => sql`insert into migrations (name, applied_at) values (gen_random_uuid()::text, 1)`.execute(db)
const list = () => db.selectFrom('accounts').select('id').orderBy('id').execute()

test('reads, lists and writes on forgotten connections fail soon, and the next ones work', onPostgres, async () => {
  // Each kind has its own connections, in use or idle.
  await Promise.all([...Array.from({ length: 6 }, read), list(), list(), write()])
  assert.ok(link.forget() >= 3)
  const began = performance.now()
  const outcomes = await Promise.allSettled([read(), read(), list(), write(), write()])
  const took_ms = performance.now() - began
  assert.ok(took_ms < allowed(soon_ms), `it took ${took_ms} ms`)
  for (const outcome of outcomes)
    if (outcome.status === 'rejected') assert.equal(outcome.reason.code, databaseAway, outcome.reason.message)
  assert.ok(outcomes.some(({ status }) => status === 'rejected'))
  const again = performance.now()
  await Promise.all([read(), list(), write()])
  assert.ok(performance.now() - again < allowed(2000), 'no forgotten connection is left')
})

test('a transaction on a forgotten connection frees its lock, and others write', onPostgres, async () => {
  const failed = db.transaction().execute(async (trx) => {
    await sql`select 1`.execute(trx)
    link.forget()
    await sql`select 1`.execute(trx)
  })
  await assert.rejects(failed, (error: Error & { code?: string }) => error.code === databaseAway)
  await until('a write', () =>
    write().then(
      () => true,
      () => false,
    ),
  )
})

test('a statement that takes long on a living connection is left alone', onPostgres, async () => {
  const { rows } = await sql<{ slept: string }>`select pg_sleep(4.5)::text as slept`.execute(db)
  assert.deepEqual(rows, [{ slept: '' }])
})

test('a listener whose connection was forgotten listens again and hears of the gap', onPostgres, async () => {
  const channel = createPostgresChannel<{ kind: string }>(db, url)
  let gaps = 0
  const received: string[] = []
  const listening = await createPostgresChannel<{ kind: string }>(db, url).listen(
    (items) => received.push(...items.map(({ kind }) => kind)),
    () => gaps++,
  )
  link.forget()
  await until('the second gap', () => gaps === 2)
  await until('a notification', async () => {
    await channel.send([{ kind: 'after' }]).catch(() => {})
    return received.includes('after')
  })
  await listening.close()
})

test('a server that takes no writes is away, and its connections are not used again', onPostgres, async () => {
  const server = new URL(database.url)
  const admin = new Kysely<object>({ dialect: new InTurnPostgresDialect(server.href) })
  await write()
  const name = server.pathname.slice(1)
  await sql.raw(`alter database ${name} set default_transaction_read_only = on`).execute(admin)
  await sql`
    select pg_terminate_backend(pid)
    from pg_stat_activity where pid <> pg_backend_pid() and datname = ${name}`.execute(admin)
  const refused = (error: Error & { code?: string }) => error.code === databaseAway
  await until('a standby’s answer', () =>
    write().then(
      () => false,
      (error) => refused(error) && /read-only/.test(error.message),
    ),
  )
  await sql
    .raw(`alter database ${name} reset default_transaction_read_only`)
    .execute(admin)
    .catch(() => {})
  await admin.destroy()
})
