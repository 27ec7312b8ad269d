// Several servers on one Postgres database: they share the work, hear of each other's changes, and none takes what
// another does.
import assert from 'node:assert/strict'
import { mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { Kysely, sql } from 'kysely'
import pino from 'pino'
import type { ApiError } from '../../contract/errors.ts'
import { openNotifications } from '../../server/platform/cluster/notifications.ts'
import { createServers } from '../../server/platform/cluster/servers.ts'
import type { Db } from '../../server/platform/db/open.ts'
import { InTurnPostgresDialect } from '../../server/platform/db/postgres/dialect.ts'
import type { Schema } from '../../server/platform/db/schema.ts'
import { Queue } from '../../server/platform/queue/queue.ts'
import { type Answer, colourRows, until } from '../support/client.ts'
import { startApp, type TestApp } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'

const onPostgres = { skip: process.env.TEST_DATABASE_URL ? false : 'runs on Postgres: set TEST_DATABASE_URL' }
const log = pino({ level: 'silent' })

let folder: string
let first: TestApp
let second: TestApp
before(async () => {
  if (onPostgres.skip) return
  folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-shared-'))
  first = await startApp({ TUNERY_STORAGE_URL: `file://${folder}` })
  second = await startApp({}, { join: first })
})
after(async () => {
  await second?.stop()
  await first?.stop()
  if (folder) rmSync(folder, { recursive: true, force: true })
})

/** What another server would be created with. */
const another = (values: { storage_url?: string; secret_key_id?: string } = {}) => {
  const dataDir = mkdtempSync(path.join(os.tmpdir(), 'tunery-server-'))
  const secret_key_id = values.secret_key_id ?? 'other'
  return createServers({ ...values, secret_key_id, db: first.db, dataDir, version: '0', log, now: Date.now })
}

test(
  'a server without common storage, or with another secret key, is refused and told what to set',
  onPostgres,
  async () => {
    await assert.rejects(another().start(), /TUNERY_STORAGE_URL/)
    await assert.rejects(another({ storage_url: 'file:///elsewhere' }).start(), /Its TUNERY_STORAGE_URL is file:.*same/)
    await assert.rejects(another({ storage_url: `file://${folder}` }).start(), /TUNERY_SECRET_KEY_FILE/)
    assert.equal((await first.services.servers.list()).length, 2, 'it has left no trace')
  },
)

test('a stream of events on one server has what happens on another, at once', onPostgres, async () => {
  const dataset_id = (await first.upload(colourRows(16))).body.id
  const config = { training_config: { epochs: 50, batch_size: 1 } }
  const job = (await first.api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id, config })).body.id
  const statuses: string[] = []
  const reading = (async () => {
    const stream = await fetch(`${second.url}/fine-tuning/jobs/${job}/events`, {
      headers: { authorization: `Bearer ${second.key}` },
    })
    let text = ''
    for await (const part of stream.body!.pipeThrough(new TextDecoderStream())) {
      text += part
      const lines = text.split('\n')
      text = lines.pop()!
      for (const line of lines.filter(Boolean)) {
        const event = JSON.parse(line)
        if (event.type === 'status') statuses.push(event.data.status)
      }
    }
  })()
  await until('the job to run', () => statuses.includes('running'))
  const running = await first.services.queue.counts()
  assert.equal(running.find(({ kind }) => kind === 'tuning')?.running, 1, 'on one server alone')
  // Whichever server trains, each can cancel.
  for (const server of [second, first]) await server.api('POST', `/fine-tuning/jobs/${job}/cancel`)
  await reading
  assert.equal(statuses.at(-1), 'cancelled')
  await until(
    'both servers to be free',
    () => first.services.runningTrainings() + second.services.runningTrainings() === 0,
  )
})

test('a dataset whose token one server has in memory is downloaded by that server', onPostgres, async () => {
  const { db, owner } = first
  // As many of each server as it prepares at once: others would wait until the leases of these expire.
  const servers = [first, second].flatMap(({ services }) => Array.from({ length: 2 }, () => services.queue.server))
  const ids = servers.map((_, index) => `ds_private_${index}`)
  await db.transaction().execute(async (trx) => {
    for (const [index, id] of ids.entries()) {
      const about = { id, account_id: owner.account_id, name: 'private', description: '', format: 'jsonl' as const }
      const none = { rows: 1, size_bytes: 1, sha256: '', status: 'preparing' as const, check_json: '{}' }
      await trx
        .insertInto('datasets')
        .values({ ...about, ...none, created_at: Date.now(), hub_token_server: servers[index]! })
        .execute()
      await first.services.queue.enqueue(trx, 'dataset', id, '')
    }
  })
  first.services.queue.wake()
  // Their files are missing, so the server that tries one keeps the lease until it expires.
  for (const [index, id] of ids.entries())
    await until('the right server to try', async () => {
      const entry = await db.selectFrom('queue_entries').selectAll().where('ref', '=', id).executeTakeFirstOrThrow()
      return entry.worker?.startsWith(`${servers[index]}/`)
    })
  for (const id of ids) await first.api('DELETE', `/datasets/${id}`)
})

test('a key that one server revokes is refused by another', onPostgres, async () => {
  const key = (await first.api('POST', '/keys', { name: 'short' })).body
  const use = (app: TestApp) =>
    fetch(`${app.url}/keys`, { headers: { authorization: `Bearer ${key.key}` } }).then(({ status }) => status)
  assert.equal(await use(second), 200)
  await first.api('DELETE', `/keys/${key.id}`)
  await until('the refusal', async () => (await use(second)) === 401)
})

test('notifications arrive, and after a lost connection everything counts as changed', onPostgres, async () => {
  const { url } = { url: first.shared.TUNERY_DATABASE_URL }
  const sender = await openNotifications(first.db, log, url)
  const receiver = await openNotifications(first.db, log, url)
  const received: (string | undefined)[] = []
  receiver.on('change', (ref) => received.push(ref))
  await receiver.start()
  assert.deepEqual(received, [undefined], 'what came before it listened')
  // More than one message of Postgres holds.
  const refs = Array.from({ length: 500 }, (_, index) => `job_${String(index).padStart(20, '0')}`)
  for (const ref of refs) sender.publish('change', ref)
  await until('all of them', () => received.length === 501)
  assert.deepEqual(received.slice(1), refs)
  await sql`
    select pg_terminate_backend(pid)
    from pg_stat_activity where application_name = 'tunery notifications'`.execute(first.db)
  await until('the gap to be told', () => received.length === 502 && received.at(-1) === undefined)
  await Promise.all([sender.close(), receiver.close()])
})

test('a periodic task runs on one server in its time, and on another after that', onPostgres, async () => {
  let time = Date.now()
  const servers = [1, 2, 3].map(() => {
    const dataDir = mkdtempSync(path.join(os.tmpdir(), 'tunery-server-'))
    return createServers({ secret_key_id: '', db: first.db, dataDir, version: '0', log, now: () => time })
  })
  const ran: string[] = []
  const all = () =>
    Promise.all(servers.map(({ id, oncePer }) => oncePer('test', 60_000, async () => void ran.push(id))))
  await all()
  await all()
  assert.equal(ran.length, 1)
  time += 60_000
  await all()
  assert.equal(ran.length, 2)
})

test('a start takes over the work of its earlier process, and no work of another server', onPostgres, async () => {
  const { db } = first
  const notifications = await openNotifications(db, log, undefined)
  const [mine, theirs] = ['srv_a', 'srv_b'].map((server) => new Queue({ db, server, notifications }))
  await db.transaction().execute(async (trx) => {
    for (const ref of ['a', 'b']) await mine!.enqueue(trx, 'test', ref, '')
  })
  const lost = await mine!.claim('test', 'srv_a/test')
  await theirs!.claim('test', 'srv_b/test')
  assert.equal(await mine!.expireOwnLeases(), 1)
  const again = await until('the expired one', () => mine!.claim('test', 'srv_a/test'))
  assert.deepEqual([again.ref, again.attempt], [lost!.ref, 2])
  assert.equal(await mine!.claim('test', 'srv_a/test'), undefined)
})

test('the id of a server is that of its data folder', onPostgres, () => {
  const dataDir = mkdtempSync(path.join(os.tmpdir(), 'tunery-server-'))
  const idNow = () => createServers({ secret_key_id: '', db: first.db, dataDir, version: '0', log, now: Date.now }).id
  const id = idNow()
  assert.match(id, /^srv_\w{20}$/)
  assert.equal(idNow(), id)
  writeFileSync(path.join(dataDir, 'server-id'), 'nonsense')
  assert.notEqual(idNow(), id)
})

test('a list that takes too long is ended, and says what to do', onPostgres, async () => {
  const hasty: Db = new Kysely<Schema>({ dialect: new InTurnPostgresDialect(first.shared.TUNERY_DATABASE_URL, 100) })
  try {
    const slow = hasty.selectFrom('accounts').select(sql`pg_sleep(10)`.as('slow')).orderBy('id')
    await assert.rejects(slow.execute(), (error: ApiError) => {
      assert.equal(error.code, 'overloaded')
      assert.match(error.message, /Narrow it/)
      return true
    })
    assert.equal((await hasty.selectFrom('accounts').select('id').orderBy('id').execute()).length, 2)
  } finally {
    await hasty.destroy()
  }
})

test(
  'requests with one idempotency key on two servers at once create one thing, and all get its answer',
  onPostgres,
  async () => {
    const send = async (app: TestApp, route: string, key: string, body: object | FormData) => {
      const form = body instanceof FormData
      const response = await fetch(`${app.url}${route}`, {
        method: 'POST',
        headers: {
          authorization: `Bearer ${first.key}`,
          'idempotency-key': key,
          ...(!form && { 'content-type': 'application/json' }),
        },
        body: form ? body : JSON.stringify(body),
      })
      return { status: response.status, body: (await response.json()) as Answer['body'] }
    }
    const form = (count: number) => {
      const body = new FormData()
      body.append('file', new Blob([colourRows(count)]), 'rows.jsonl')
      return body
    }
    const both = <T>(act: (app: TestApp, index: number) => Promise<T>) =>
      Promise.all(Array.from({ length: 8 }, (_, index) => act(index % 2 ? second : first, index)))
    for (let round = 0; round < 5; round++) {
      // A secret that is shown once, a name that is unique, a file.
      const keys = await both((app) => send(app, '/keys', `key-${round}`, { name: `shared-${round}` }))
      assert.deepEqual([...new Set(keys.map(({ status }) => status))], [201], JSON.stringify(keys))
      assert.equal(new Set(keys.map(({ body }) => body.key)).size, 1)
      const body = { name: `shared-${round}`, model: tiny }
      const deployments = await both((app) => send(app, '/deployments', `deployment-${round}`, body))
      assert.deepEqual([...new Set(deployments.map(({ status }) => status))], [201], JSON.stringify(deployments))
      assert.equal(new Set(deployments.map(({ body }) => body.id)).size, 1)
      const same = await both((app) => send(app, '/datasets', `same-${round}`, form(10)))
      assert.deepEqual([...new Set(same.map(({ status }) => status))], [201], JSON.stringify(same))
      assert.equal(new Set(same.map(({ body }) => body.id)).size, 1)
      const others = await both((app, index) => send(app, '/datasets', `other-${round}`, form(10 + (index % 2))))
      for (const { status, body } of others)
        if (status !== 201) assert.deepEqual([status, body.error.code], [400, 'idempotency_key_reused'])
      const accepted = others.map(({ status }) => status === 201)
      for (const parity of [0, 1])
        assert.equal(new Set(accepted.filter((_, index) => index % 2 === parity)).size, 1, 'one of the two bodies')
      assert.notEqual(accepted[0], accepted[1])
    }
  },
)

test('uploads at once on two servers store no more than the tier allows', onPostgres, async () => {
  const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-shared-'))
  const plans = path.join(folder, 'plans.json')
  const tier = { name: 'Small', requests_per_minute: null, requests_per_day: null, max_concurrent: null }
  writeFileSync(plans, JSON.stringify({ tiers: [{ ...tier, id: 'small', max_storage_mb: 1 }] }))
  const storage = path.join(folder, 'storage')
  mkdirSync(storage)
  const settings = { TUNERY_PLANS_FILE: plans, TUNERY_DEFAULT_TIER: 'small' }
  const first = await startApp({ ...settings, TUNERY_STORAGE_URL: `file://${storage}` })
  const second = await startApp(settings, { join: first })
  try {
    const rows = `${colourRows(1)}\n`
    const lines = rows.repeat(Math.floor(4e5 / rows.length))
    const uploads = await Promise.all([first, second, first, second, first, second].map((app) => app.upload(lines)))
    assert.deepEqual(uploads.map(({ status }) => status).sort(), [201, 201, 403, 403, 403, 403])
    const { body } = await second.api('GET', '/usage/storage')
    assert.equal(body.used_bytes, 2 * lines.length)
    const stored = readdirSync(path.join(storage, 'objects'), { recursive: true }).filter((name) =>
      String(name).includes('ds_'),
    )
    assert.equal(stored.length, 2, 'nothing is left of those that are refused')
  } finally {
    await second.stop()
    await first.stop()
    rmSync(folder, { recursive: true })
  }
})
