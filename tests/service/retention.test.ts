import assert from 'node:assert/strict'
import { mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, mock, test } from 'node:test'
import pino from 'pino'
import { removeExpiredRuns } from '../../server/features/jobs/run-files.ts'
import * as store from '../../server/features/jobs/store.ts'
import { createServers } from '../../server/platform/cluster/servers.ts'
import { openDatabase } from '../../server/platform/db/open.ts'
import { newDelivery } from '../../server/platform/events/outbox.ts'
import { startSweeping, sweep } from '../../server/platform/events/retention.ts'
import { until } from '../support/client.ts'
import { withDatabase } from '../support/database.ts'
import { jobRow } from '../support/job-row.ts'
import { startApp } from '../support/service.ts'

const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-retention-'))
after(() => rmSync(folder, { recursive: true }))
const day_ms = 86_400_000

test('expired rows are deleted; younger, pending and permanent rows stay', async () => {
  const db = await openDatabase(await withDatabase(folder))
  const now = Date.UTC(2026, 10, 1)
  const account_id = 'acc_1'
  await db
    .insertInto('accounts')
    .values({ id: account_id, name: 'a', tier: 'free', suspended_at: null, created_at: 0 })
    .execute()
  const hook = {
    url: 'https://x.example',
    format: 'tunery' as const,
    events_json: '[]',
    secrets_json: '[]',
    disabled_at: null,
    disabled_reason: null,
  }
  const health = { failures: 0, failing_since: null, slowed_until: null, created_at: 0, updated_at: 0 }
  await db
    .insertInto('webhooks')
    .values({ id: 'whk_1', account_id, ...hook, ...health })
    .execute()
  for (const days of [1, 6, 29, 31, 89, 91, 399, 401]) {
    const created_at = now - days * day_ms
    const id = String(days)
    await db
      .insertInto('events')
      .values({ id: `evt_${id}`, account_id, type: 'model.deployed', data_json: '{}', created_at })
      .execute()
    const delivery = {
      ...newDelivery('whk_1', { id: `evt_${id}`, account_id, type: 'model.deployed' }, created_at),
      id: `dlv_${id}`,
    }
    await db.insertInto('webhook_deliveries').values(delivery).execute()
    const tried = {
      number: 1,
      started_at: created_at,
      duration_ms: 1,
      response_status: 200,
      response_body: 'ok',
      error_json: null,
    }
    await db
      .insertInto('webhook_attempts')
      .values({ delivery_id: delivery.id, ...tried })
      .execute()
    const entry = { ref: id, run_at: 0, attempt: 1, worker: null, lease_until: null, created_at }
    await db
      .insertInto('queue_entries')
      .values([
        { kind: 'done', status: 'done', ...entry },
        { kind: 'waiting', status: 'waiting', ...entry },
      ])
      .execute()
    const counts = {
      prompt_tokens: 1,
      completion_tokens: 1,
      cached_tokens: 0,
      trained_tokens: 0,
      duration_ms: 1,
      cost: 0,
    }
    const names = { account_id, key_id: 'k', model: 'm', model_id: 'm', kind: 'chat' as const }
    await db
      .insertInto('usage')
      .values({ request_id: id, created_at, ...names, ...counts, finish: 'complete' })
      .execute()
    await db
      .insertInto('usage_days')
      .values({ day: created_at, requests: 1, ...names, ...counts })
      .execute()
    await db.insertInto('day_counts').values({ account_id, day: created_at, requests: 1 }).execute()
    await db
      .insertInto('idempotency_keys')
      .values({ account_id, key: id, fingerprint: '', target: '', answer_sealed: null, created_at })
      .execute()
  }
  await sweep(db, now)
  const left = async (
    table:
      | 'events'
      | 'webhook_deliveries'
      | 'webhook_attempts'
      | 'queue_entries'
      | 'usage'
      | 'usage_days'
      | 'day_counts'
      | 'idempotency_keys',
  ) => Number((await db.selectFrom(table).select(db.fn.countAll().as('count')).executeTakeFirstOrThrow()).count)
  assert.deepEqual(
    [
      await left('events'),
      await left('webhook_deliveries'),
      await left('webhook_attempts'),
      await left('queue_entries'),
      await left('usage'),
    ],
    [3, 3, 3, 2 + 8, 5],
  )
  assert.deepEqual(
    [await left('usage_days'), await left('day_counts'), await left('idempotency_keys')],
    [8, 7, 1],
    'a response is stored for the whole day',
  )
  await db.destroy()
})

/** Jobs with a run folder each, by the days since their end; null: they have not ended. */
const runs = {
  job_failed_29: ['failed', 29],
  job_failed_31: ['failed', 31],
  job_cancelled_31: ['cancelled', 31],
  job_queued: ['queued', null],
  job_running: ['running', null],
} as const
async function addRuns(dataDir: string, now: number) {
  const db = await openDatabase(await withDatabase(dataDir))
  await db
    .insertInto('accounts')
    .values({ id: 'mine', name: 'a', tier: 'free', suspended_at: null, created_at: 0 })
    .execute()
  for (const [id, [status, days]] of Object.entries(runs)) {
    const row = jobRow({ id, status, paused: 1, finished_at: days && now - days * day_ms })
    await db.transaction().execute((trx) => store.insertJob(trx, row))
    mkdirSync(path.join(dataDir, 'runs', id, '1'), { recursive: true })
    writeFileSync(path.join(dataDir, 'runs', id, '1', 'trainer.log'), 'why it failed')
  }
  return db
}
const runFolders = (dataDir: string) => readdirSync(path.join(dataDir, 'runs')).toSorted()

test('the logs of failed and cancelled jobs are removed 30 days after the job ended, by the hourly sweep', async () => {
  const dataDir = path.join(folder, 'clock')
  const now = Date.UTC(2026, 10, 1)
  const db = await addRuns(dataDir, now)
  mock.timers.enable({ apis: ['Date', 'setInterval'], now })
  const reserve = { use: <T>(work: () => Promise<T>) => work() }
  const log = pino({ level: 'silent' })
  const servers = createServers({ db, dataDir, secret_key_id: '', version: '0', log, now: Date.now })
  let sweeps = 0
  const failing = () => Promise.reject(new Error('this must not keep others from their work'))
  const remove = (time: number) => removeExpiredRuns(db, dataDir, time).finally(() => sweeps++)
  const sweeping = startSweeping({ db, reserve, servers, log }, { shared: [failing], own: [remove] })
  const swept = async (count: number) => {
    while (sweeps < count) await new Promise(setImmediate)
    return runFolders(dataDir)
  }
  try {
    assert.deepEqual(await swept(1), ['job_failed_29', 'job_queued', 'job_running'])
    for (let hour = 1; hour <= 24; hour++) {
      mock.timers.tick(3_600_000)
      assert.deepEqual(await swept(1 + hour), ['job_failed_29', 'job_queued', 'job_running'])
    }
    mock.timers.tick(3_600_000)
    assert.deepEqual(await swept(26), ['job_queued', 'job_running'])
  } finally {
    mock.timers.reset()
    await sweeping.close()
    await db.destroy()
  }
})

test('the service sweeps run folders from its start on', async () => {
  let kept: string[] = []
  const app = await startApp(
    {},
    {
      open: async (dataDir) => {
        const db = await addRuns(dataDir, Date.now())
        kept = runFolders(dataDir)
        return db
      },
    },
  )
  try {
    assert.equal(kept.length, Object.keys(runs).length)
    await until('the old one to go', () => !runFolders(app.dataDir).includes('job_failed_31'))
    assert.ok(runFolders(app.dataDir).includes('job_failed_29'))
  } finally {
    await app.stop()
  }
})
