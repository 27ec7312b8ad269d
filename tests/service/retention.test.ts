import assert from 'node:assert/strict'
import { mkdtempSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { openDatabase } from '../../server/db/open.ts'
import { newDelivery } from '../../server/events/outbox.ts'
import { sweep } from '../../server/events/retention.ts'

const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-retention-'))
after(() => rmSync(folder, { recursive: true }))
const day_ms = 86_400_000

test('expired rows are deleted; younger, pending and permanent rows stay', async () => {
  const db = await openDatabase(folder)
  const now = Date.UTC(2026, 10, 1)
  const account_id = 'acc_1'
  await db
    .insertInto('accounts')
    .values({ id: account_id, name: 'a', tier: 'free', suspended_at: null, created_at: 0 })
    .execute()
  const hook = {
    url: 'https://x.example',
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
