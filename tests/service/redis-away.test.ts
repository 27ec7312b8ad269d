// Limits of one process of several: its share while their Redis is away, and what is written and corrected after it.
import assert from 'node:assert/strict'
import { mkdtempSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, type TestContext, test } from 'node:test'
import { sql } from 'kysely'
import pino from 'pino'
import { freePort } from '../../bench/support/free-port.ts'
import { startOfDay } from '../../lib/utc-day.ts'
import { createNotifications } from '../../server/platform/cluster/notifications.ts'
import { type Db, openThreadedDatabase } from '../../server/platform/db/open.ts'
import { requestsOf } from '../../server/platform/limits/daily-quota.ts'
import { Limits, sessionReadsPerMinute } from '../../server/platform/limits/service.ts'
import { createChanges } from '../../server/platform/redis/changes.ts'
import { connectRedis } from '../../server/platform/redis/connection.ts'
import { until } from '../support/client.ts'
import { full } from '../support/full.ts'
import { redisTest, startRedis } from '../support/redis.ts'
import { startSilentLink } from '../support/silent-link.ts'

const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-redis-away-'))
const tiers = Object.fromEntries(
  Object.entries({
    minute: [200, null, null],
    both: [100, 10, 20],
    day: [null, 10_000, null],
    slots: [null, null, 3],
    none: [null, null, null],
  }).map(([id, [requests_per_minute, requests_per_day, max_concurrent]]) => [
    id,
    { id, name: id, requests_per_minute, requests_per_day, max_concurrent },
  ]),
)
const plans = { tierOrTightest: (id: string) => tiers[id] }

let db: Db
before(async () => {
  db = await openThreadedDatabase(folder)
})
after(async () => {
  await db.destroy()
  rmSync(folder, { recursive: true })
})

let accounts = 0
async function account(tier: string) {
  const account_id = `acc_${accounts++}`
  const row = { id: account_id, name: 'a', tier, suspended_at: null, created_at: 0 }
  await db.insertInto('accounts').values(row).execute()
  return { account_id, tier, user_id: 'usr' } as never
}
const writtenOf = (caller: never) =>
  requestsOf(db, (caller as { account_id: string }).account_id, startOfDay(Date.now()))

/** One of four processes that share the Redis at this address. */
async function startProcess(t: TestContext, url: string, now = Date.now) {
  const warnings: string[] = []
  const log = pino({ level: 'warn' }, { write: (line) => warnings.push(line) })
  const redis = await connectRedis(url, 'test', log, 4)
  const changes = createChanges(createNotifications(log), redis)
  const limits = new Limits({ db, plans: plans as never, log, shared: { redis, changes }, now })
  const work = limits.start()
  t.after(async () => {
    await work.close()
    await redis.close()
  })
  /** How many of so many requests are admitted, one after the other. */
  const admit = async (caller: never, requests: number, slot = false) => {
    const releases = []
    for (let n = 0; n < requests; n++) {
      const { refused, release } = await limits.admit(caller, { slot })
      if (!refused) releases.push(release)
    }
    return releases
  }
  return { limits, redis, work, warnings, admit }
}
const alone = async (t: TestContext, now?: () => number) =>
  startProcess(t, `redis://127.0.0.1:${await freePort()}`, now)

test('a process admits its share of a minute, again in the next, and at least one of a few slots', async (t) => {
  let time = Date.now()
  const { admit, limits } = await alone(t, () => time)
  const minute = await account('minute')
  assert.equal((await admit(minute, 60)).length, 50)
  time += 61_000
  assert.equal((await admit(minute, 60)).length, 50)
  const slots = await account('slots')
  const held = await admit(slots, 2, true)
  assert.equal(held.length, 1, 'a limit may be smaller than the number of processes')
  // A release that comes twice frees no slot of another.
  for (let n = 0; n < 2; n++) held[0]!()
  const [again, ...more] = await admit(slots, 2, true)
  assert.ok(again && more.length === 0)
  assert.equal((await limits.state(slots)).concurrent.used, 1)
  const reads = []
  for (let n = 0; n < sessionReadsPerMinute; n++) reads.push(await limits.countSessionRead(minute))
  assert.equal(reads.filter(({ refused }) => !refused).length, sessionReadsPerMinute / 4)
})

test('a request that the day refuses takes nothing of the minute, and no slot', async (t) => {
  let time = startOfDay(Date.now()) + 86_400_000 - 20_000
  const { admit, limits } = await alone(t, () => time)
  const caller = await account('both')
  const held = await admit(caller, 10, false)
  assert.equal(held.length, 10)
  assert.equal((await admit(caller, 30, true)).length, 0)
  assert.equal((await limits.state(caller)).concurrent.used, 0)
  time += 30_000
  assert.equal((await admit(caller, 30)).length, 10, 'of the 15 that the minute has left')
})

test('what the database has not granted is written to it: at the end, and when it can be written again', {
  ...redisTest,
}, async (t) => {
  const redis = await startRedis()
  t.after(() => redis.stop())
  const { admit, work, warnings } = await startProcess(t, redis.url)
  const [unlimited, limited] = [await account('none'), await account('day')]
  assert.equal((await admit(unlimited, 7)).length, 7)
  assert.equal((await admit(limited, 10)).length, 10)
  for (const event of ['insert', 'update'])
    await sql
      .raw(`create trigger refuse_${event} before ${event} on day_counts begin select raise(abort, 'refused'); end`)
      .execute(db)
  // More than a grant has.
  assert.equal((await admit(limited, 200)).length, 200, 'a database that refuses writes stops no request')
  await until('a flush to have failed', () => warnings.some((line) => line.includes('written or reported')))
  for (const event of ['insert', 'update']) await sql.raw(`drop trigger refuse_${event}`).execute(db)
  await work.close()
  assert.equal(await writtenOf(unlimited), 7)
  assert.ok((await writtenOf(limited)) >= 210, `${await writtenOf(limited)} of 210 are written`)
})

test('a slot whose release got lost on its way is free once Redis answers again', {
  skip: redisTest.skip || full.skip,
}, async (t) => {
  const server = await startRedis()
  t.after(() => server.stop())
  const link = await startSilentLink({ host: '127.0.0.1', port: server.port })
  t.after(() => link.close())
  const { admit, limits, redis } = await startProcess(t, `redis://127.0.0.1:${link.port}`)
  const caller = await account('slots')
  const [release] = await admit(caller, 1, true)
  link.forget()
  release!()
  await until('Redis to be away', () => redis.isAway())
  await until('Redis to be back', () => !redis.isAway())
  assert.equal((await limits.state(caller)).concurrent.used, 0)
})

test('a minute that other processes have used up admits nothing more while Redis is away', redisTest, async (t) => {
  const server = await startRedis()
  t.after(() => server.stop())
  const [here, there] = [await startProcess(t, server.url), await startProcess(t, server.url)]
  const caller = await account('minute')
  assert.equal((await here.admit(caller, 201)).length, 200)
  assert.equal((await there.admit(caller, 1)).length, 0)
  await server.kill()
  assert.equal((await there.admit(caller, 10)).length, 0)
})
