// The limits of a tier: requests per minute, per day and concurrent ones, and the rate limit
// headers.
import assert from 'node:assert/strict'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, mock, test } from 'node:test'
import pino from 'pino'
import { newKey } from '../../lib/key-format.ts'
import { startOfDay } from '../../lib/utc-day.ts'
import { openDatabase, openThreadedDatabase } from '../../server/platform/db/open.ts'
import { DailyQuota, requestsOf } from '../../server/platform/limits/daily-quota.ts'
import { Limits } from '../../server/platform/limits/service.ts'
import { type Client, client, colourRows, until } from '../support/client.ts'
import { withDatabase } from '../support/database.ts'
import { startApp, type TestApp } from '../support/service.ts'
import { endless, tiny } from '../support/tiny.ts'

const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-limits-'))
const plansFile = path.join(folder, 'plans.json')
const tier = (
  id: string,
  requests_per_minute: number | null,
  requests_per_day: number | null,
  max_concurrent: number | null,
) => ({
  id,
  name: id,
  requests_per_minute,
  requests_per_day,
  max_concurrent,
  max_replicas: null,
  max_event_streams: null,
  max_storage_mb: null,
})
writeFileSync(
  plansFile,
  JSON.stringify({
    tiers: [
      tier('enterprise', 10_000, null, 100),
      tier('minute', 200, null, null),
      tier('day', null, 300, null),
      tier('two', 100_000, 100_000, 2),
      tier('none', null, null, null),
    ],
  }),
)
let app: TestApp
let operator: Client
before(async () => {
  app = await startApp({ TUNERY_PLANS_FILE: plansFile, TUNERY_MAX_WAITING_JOBS: '2' })
  operator = client(app.url, (await app.services.accounts.createKey('operator', 'operator', app.owner.user_id)).key)
})
after(async () => {
  await app.stop()
  rmSync(folder, { recursive: true })
})

async function account(tierId: string) {
  const { body } = await operator.api('POST', '/operator/accounts', {
    name: tierId,
    tier: tierId,
    owner: { name: 'o' },
  })
  return { id: body.account.id as string, key: body.key as string, ...client(app.url, body.key) }
}
/** A database with one account, `caller`; `begin` makes its limits by that tier, at each call as another process. */
async function limitsOver(name: string, bounds: ReturnType<typeof tier>) {
  const db = await openDatabase(await withDatabase(path.join(folder, name)))
  await db
    .insertInto('accounts')
    .values({ id: 'acc', name: 'a', tier: 't', suspended_at: null, created_at: 0 })
    .execute()
  const plans = {
    currency: 'USD',
    tiers: [bounds],
    tier: () => bounds,
    tierOrTightest: () => bounds,
    pricing: () => assert.fail(),
  }
  return { db, begin: () => new Limits({ db, plans, log: pino({ level: 'silent' }) }) }
}
const caller = { account_id: 'acc', tier: 't' } as never
const get = (key: string, route: string) => fetch(`${app.url}${route}`, { headers: { authorization: `Bearer ${key}` } })
const shown = ({ headers }: Response) =>
  ['limit', 'remaining', 'reset'].map((name) => Number(headers.get(`x-ratelimit-${name}`)))
const chat = (key: string, body: object) =>
  fetch(`${app.url}/chat/completions`, {
    method: 'POST',
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
    body: JSON.stringify({ model: tiny, messages: [{ role: 'user', content: 'hi' }], ...body }),
  })

for (const [id, max, name] of [
  ['minute', 200, 'requests_per_minute'],
  ['day', 300, 'requests_per_day'],
] as const)
  test(`of 1,000 concurrent callers exactly as many are admitted as the ${id} allows`, async () => {
    const { key } = await account(id)
    const answers = await Promise.all(Array.from({ length: 1000 }, () => get(key, '/user/profile')))
    const bodies = await Promise.all(
      answers.map(
        (answer) => answer.json() as Promise<{ error: { code: string; details: { limit: string; max: number } } }>,
      ),
    )
    const refused = answers.flatMap((answer, index) =>
      answer.status === 429 ? [{ answer, body: bodies[index]! }] : [],
    )
    assert.equal(answers.filter(({ status }) => status === 200).length, max)
    assert.equal(refused.length, 1000 - max)
    const remaining = answers.filter(({ status }) => status === 200).map((answer) => shown(answer)[1]!)
    assert.deepEqual([...new Set(remaining)].length, max, 'each got its own count')
    for (const { answer, body } of refused) {
      assert.deepEqual(
        [body.error.code, body.error.details.limit, body.error.details.max],
        ['rate_limit_exceeded', name, max],
      )
      const [limit, left, reset] = shown(answer)
      assert.deepEqual([limit, left], [max, 0])
      const wait_s = Number(answer.headers.get('retry-after'))
      const said_s = Date.parse(answer.headers.get('date')!) / 1000
      assert.ok(
        wait_s >= 1 && Math.abs(said_s + wait_s - reset!) <= 2,
        `retry-after ${wait_s} goes with the reset ${reset}`,
      )
    }
  })

test('a window lasts a minute from its first request; refused requests do not count', async () => {
  mock.timers.enable({ apis: ['Date', 'setTimeout', 'setInterval'], now: Date.UTC(2026, 0, 1, 23, 58, 30) })
  const { db, begin } = await limitsOver('clock', tier('t', 2, 3, null))
  try {
    const limits = begin()
    const admit = async () => {
      const { window, refused } = await limits.admit(caller, { slot: false })
      return [
        refused?.limit ?? 'ok',
        window!.limit,
        window!.remaining,
        new Date(window!.resets_at).toISOString().slice(11, 19),
      ]
    }
    assert.equal((await limits.state(caller)).minute.resets_at, Date.UTC(2026, 0, 1, 23, 59, 30))
    assert.deepEqual(await admit(), ['ok', 2, 1, '23:59:30'])
    assert.deepEqual(await admit(), ['ok', 2, 0, '23:59:30'])
    for (let each = 0; each < 5; each++) assert.deepEqual(await admit(), ['requests_per_minute', 2, 0, '23:59:30'])
    mock.timers.tick(60_000)
    assert.deepEqual(await admit(), ['ok', 3, 0, '00:00:00'])
    assert.deepEqual(await admit(), ['requests_per_day', 3, 0, '00:00:00'])
    mock.timers.tick(31_000)
    assert.deepEqual(await admit(), ['ok', 2, 0, '00:00:30'], 'the day is a new one, the minute is not')
    assert.equal((await limits.state(caller)).day.used, 1)
  } finally {
    mock.timers.reset()
    await db.destroy()
  }
})

test('what is refused counts nothing, and a slot that is released twice is one', async () => {
  const { db, begin } = await limitsOver('slots', tier('t', 2, 4, 2))
  try {
    const limits = begin()
    const used = async () => {
      const { minute, day, concurrent } = await limits.state(caller)
      return [minute.used, day.used, concurrent.used]
    }
    const refused = async () => (await limits.admit(caller, { slot: true })).refused?.limit
    assert.deepEqual(await used(), [0, 0, 0])
    const first = await limits.acquireSlot(caller)
    const second = await limits.admit(caller, { slot: true })
    assert.deepEqual(await used(), [1, 1, 2])
    assert.equal(await limits.acquireSlot(caller), undefined)
    assert.equal(await refused(), 'max_concurrent')
    assert.deepEqual(await used(), [1, 1, 2])
    first!()
    first!()
    assert.deepEqual(await used(), [1, 1, 1])
    assert.equal(await limits.countRequest(caller), undefined)
    assert.equal(await refused(), 'requests_per_minute')
    assert.equal((await limits.countRequest(caller))?.limit, 'requests_per_minute')
    assert.deepEqual(await used(), [2, 2, 1])
    for (const counted of [true, true, false]) assert.equal(await limits.countBatchRequest(caller), counted)
    assert.equal(await refused(), 'requests_per_day')
    assert.deepEqual(await used(), [2, 4, 1])
    second.release!()
    assert.deepEqual(await used(), [2, 4, 0])
  } finally {
    await db.destroy()
  }
})

test('the daily count survives a restart; after a kill the limit holds and 99 of 100 are admitted', async () => {
  const { db, begin } = await limitsOver('days', tier('t', null, 1000, null))
  try {
    const admitted = async (limits: ReturnType<typeof begin>, tries: number) =>
      (await Promise.all(Array.from({ length: tries }, () => limits.admit(caller, { slot: false })))).filter(
        ({ refused }) => !refused,
      ).length
    const first = begin()
    const working = first.start()
    assert.equal(await admitted(first, 333), 333)
    await working.close()
    const second = begin()
    assert.equal((await second.state(caller)).day.used, 333)
    assert.equal(await admitted(second, 100), 100)
    // Dropped without closing, as by a SIGKILL.
    const third = begin()
    const used = (await third.state(caller)).day.used
    assert.ok(used >= 433 && used <= 433 + 10, `${used} are counted as used`)
    const rest = await admitted(third, 2000)
    assert.ok(433 + rest <= 1000 && 433 + rest >= 990, `${433 + rest} of 1,000`)
  } finally {
    await db.destroy()
  }
})

test("a day's count is reported for that day, even after the next day has begun", async () => {
  mock.timers.enable({ apis: ['Date', 'setTimeout', 'setInterval'], now: Date.UTC(2026, 0, 1, 23, 59, 59) })
  const { db } = await limitsOver('notified', tier('t', null, null, null))
  try {
    const notified: unknown[] = []
    const quota = new DailyQuota(
      db,
      pino({ level: 'silent' }),
      Date.now,
      async (_, day, used, limit) => void notified.push([new Date(day).getUTCDate(), used, limit]),
    )
    for (let each = 0; each < 4; each++) await quota.admit('acc', 4)
    mock.timers.tick(5000)
    await quota.flush()
    assert.deepEqual(notified, [[1, 4, 4]])
    await quota.admit('acc', 4)
    await quota.flush()
    assert.deepEqual(notified.slice(1), [[2, 1, 4]])
    await quota.admit('acc', 4)
    mock.timers.tick(86_400_000)
    await quota.admit('acc', 4)
    assert.deepEqual(
      notified.slice(2),
      [[2, 2, 4]],
      'the end of the second day is reported before the third is counted',
    )
    // Without a limit nothing is reserved ahead: a day's count is written at a flush, and when the day has ended.
    const written = async () =>
      (
        await db.selectFrom('day_counts').select('requests').where('account_id', '=', 'acc').orderBy('day').execute()
      ).at(-1)?.requests
    mock.timers.tick(86_400_000)
    for (const count of [1, 2]) assert.equal(await quota.admit('acc', null), count)
    await quota.flush()
    assert.equal(await written(), 2)
    assert.equal(await quota.admit('acc', null), 3)
    mock.timers.tick(86_400_000)
    assert.equal(await quota.admit('acc', null), 1)
    assert.equal(await written(), 3)
    quota.refund('acc')
    assert.equal(await quota.used('acc'), 0)
    // A refusal from before midnight takes nothing from the new day.
    quota.refund('acc')
    assert.equal(await quota.used('acc'), 0)
    const reserved = quota.admit('acc', 4)
    assert.ok(reserved instanceof Promise, 'no request before it is in the database')
    assert.equal(await reserved, 1)
  } finally {
    mock.timers.reset()
    await db.destroy()
  }
})

test('while the database is locked requests are counted in memory up to the limit, and written later', async () => {
  const { db: locking } = await limitsOver('locked', tier('t', null, 3, null))
  const db = await openThreadedDatabase(path.join(folder, 'locked'))
  try {
    const quota = new DailyQuota(db, pino({ level: 'silent' }), Date.now, async () => {})
    await quota.used('acc')
    await locking.transaction().execute(async () => {
      const numbers = await Promise.all([1, 2, 3, 4].map(() => quota.admit('acc', 3)))
      assert.deepEqual(numbers, [1, 2, 3, undefined])
    })
    await quota.close()
    assert.equal(await requestsOf(locking, 'acc', startOfDay(Date.now())), 3)
  } finally {
    await Promise.all([db.destroy(), locking.destroy()])
  }
})

test('concurrent requests are limited; a slot is free when its response has ended or its client has left', async () => {
  const { key } = await account('two')
  const leaving = new AbortController()
  const long = { stream: true, max_tokens: 2000, ...endless }
  const first = await chat(key, long)
  const second = await fetch(`${app.url}/chat/completions`, {
    method: 'POST',
    signal: leaving.signal,
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
    body: JSON.stringify({ model: tiny, messages: [{ role: 'user', content: 'hi' }], ...long }),
  })
  assert.deepEqual([first.status, second.status], [200, 200])
  assert.equal(shown(first)[0], 100_000, 'streams tell of the limits too')
  const third = await chat(key, { max_tokens: 1 })
  assert.equal(third.status, 429)
  assert.deepEqual(((await third.json()) as { error: { details: object } }).error.details, {
    limit: 'max_concurrent',
    max: 2,
    retry_after_seconds: 1,
  })
  assert.equal(third.headers.get('retry-after'), '1')
  const { body } = await client(app.url, key).api('GET', '/user/profile')
  assert.deepEqual([body.usage.concurrent, body.limits.max_concurrent], [2, 2])
  assert.equal(body.usage.minute.used, body.usage.day.used)
  assert.equal(body.usage.day.used, 3, 'two streams and the profile: what was refused is not counted')
  leaving.abort()
  await until('the slot of the aborted client', async () => (await chat(key, { max_tokens: 1 })).status === 200)
  await first.body?.cancel()
  const concurrent = async () => (await client(app.url, key).api('GET', '/user/profile')).body.usage.concurrent
  await until('the other slot', async () => (await concurrent()) === 0)
  const both = [await chat(key, long), await chat(key, long)]
  assert.deepEqual(
    both.map(({ status }) => status),
    [200, 200],
    'two streams have both slots again',
  )
  for (const { body } of both) await body!.cancel()
})

test('with sequential requests, two at a time never reach a limit of two', async () => {
  const { key } = await account('two')
  const statuses: number[] = []
  const work = async (stream: boolean) => {
    for (let each = 0; each < 40; each++) {
      const answer = await chat(key, { max_tokens: 2, stream })
      await answer.text()
      statuses.push(answer.status)
    }
  }
  await Promise.all([work(true), work(false)])
  assert.deepEqual([...new Set(statuses)], [200])
})

test('each request of a batch counts, waits for a slot and gets its own error beyond the limit', async () => {
  const { key, id } = await account('minute')
  const batch = (count: number) =>
    fetch(`${app.url}/chat/completions/batch`, {
      method: 'POST',
      headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
      body: JSON.stringify({
        model: tiny,
        max_tokens: 1,
        requests: Array.from({ length: count }, () => ({ messages: [{ role: 'user', content: 'x' }] })),
      }),
    }).then((answer) => answer.json() as Promise<{ responses: { error?: { code: string } }[] }>)
  await batch(100)
  await batch(95)
  const { responses } = await batch(10)
  const codes = responses.map((each) => each.error?.code ?? 'ok')
  assert.equal(codes.filter((code: string) => code === 'ok').length, 5)
  assert.equal(codes.filter((code: string) => code === 'rate_limit_exceeded').length, 5)
  const changed = await operator.api('PUT', `/operator/accounts/${id}`, { tier: 'two' })
  assert.equal(changed.status, 200)
  const wide = await batch(30)
  assert.ok(
    wide.responses.every((each) => !each.error),
    'with two slots all of them are answered',
  )
  await until(
    'every slot to be free',
    async () => (await client(app.url, key).api('GET', '/user/profile')).body.usage.concurrent === 0,
  )
})

test('a running job takes a slot; without one, or while its account is suspended, it waits', async () => {
  const { key, id, api, upload } = await account('two')
  const dataset = await upload(colourRows(40))
  const streams = await Promise.all([1, 2].map(() => chat(key, { stream: true, max_tokens: 4000, ...endless })))
  const config = { method: 'lora', training_config: { epochs: 1 } }
  const job = (await api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id: dataset.body.id, config })).body
  assert.ok(job.id, JSON.stringify(job))
  const entry = () => app.services.jobs.get(id, job.id)
  const db = await app.openDatabase()
  const looked = async () =>
    Number(
      (await db.selectFrom('queue_entries').select('run_at').where('ref', '=', job.id).executeTakeFirstOrThrow())
        .run_at,
    )
  const enqueued = await looked()
  await until('the job to be looked at and to wait', async () => (await looked()) > enqueued)
  assert.equal((await entry()).status, 'queued')
  const further = () => api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id: dataset.body.id, config })
  const second = await further()
  const third = await further()
  assert.deepEqual(
    [third.status, third.body.error.details.limit, third.body.error.details.max],
    [429, 'waiting_jobs', 2],
    'two may wait',
  )
  await api('POST', `/fine-tuning/jobs/${second.body.id}/cancel`)
  await operator.api('PUT', `/operator/accounts/${id}`, { status: 'suspended' })
  for (const stream of streams) await stream.body?.cancel()
  await db.updateTable('queue_entries').set({ run_at: 0 }).where('ref', '=', job.id).execute()
  assert.equal(await app.services.queue.claim('tuning', 'w'), undefined, 'of a suspended account nothing runs')
  await operator.api('PUT', `/operator/accounts/${id}`, { status: 'active' })
  await until('the job to run', async () => (await entry()).status === 'running')
  assert.equal((await api('GET', '/user/profile')).body.usage.concurrent, 1)
  await api('POST', `/fine-tuning/jobs/${job.id}/cancel`)
  const events = (await (await get(key, `/fine-tuning/jobs/${job.id}/events`)).text()).split('\n').filter(Boolean)
  assert.ok(!events.some((line) => /attempt 2/.test(line)), 'waiting for a slot is no attempt')
  await until('the slot to be free', async () => (await api('GET', '/user/profile')).body.usage.concurrent === 0)
  await db.destroy()
})

test('every response to a key has the remaining limits, whatever its status', async () => {
  const { key } = await account('minute')
  const answers = [
    await get(key, '/user/profile'),
    await get(key, '/datasets/ds_none'),
    await chat(key, { temperature: 9 }),
    await get(key, '/operator/accounts'),
  ]
  assert.deepEqual(
    answers.map(({ status }) => status),
    [200, 404, 400, 403],
  )
  assert.deepEqual(
    answers.map((answer) => shown(answer).slice(0, 2)),
    [199, 198, 197, 196].map((left) => [200, left]),
  )
  const free = await get((await account('none')).key, '/user/profile')
  assert.equal(free.headers.get('x-ratelimit-limit'), null, 'where nothing is limited there is nothing to tell')
})

test('wrong keys are limited by address before any lookup; known keys are still accepted there', async () => {
  const [known, also] = [await account('minute'), await account('minute')]
  for (const { key } of [also, known]) assert.equal((await get(key, '/user/profile')).status, 200)
  const statuses: number[] = []
  for (let each = 0; each < 40; each++)
    statuses.push((await get(each % 2 ? newKey() : 'nonsense', '/user/profile')).status)
  assert.deepEqual([statuses.filter((status) => status === 401).length, statuses.at(-1)], [30, 429])
  const refused = await get(newKey(), '/user/profile')
  const { error } = (await refused.json()) as { error: { code: string; details: { limit: string } } }
  assert.deepEqual([error.code, error.details.limit], ['rate_limit_exceeded', 'wrong_keys_per_minute'])
  assert.deepEqual(shown(refused).slice(0, 2), [30, 0])
  for (const { key } of [also, known]) assert.equal((await get(key, '/user/profile')).status, 200)
  const { body } = await known.api('POST', '/keys', { name: 'never used' })
  assert.equal((await get(body.key, '/user/profile')).status, 429, 'no key is looked up that was not right before')
})
