// Usage reports: the sums equal the usage reported to clients, by day, model and key, with their
// cost.
import assert from 'node:assert/strict'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { addUsage } from '../../server/features/usage/add-usage.ts'
import { isPostgres } from '../../server/platform/db/dialect.ts'
import { up as removeImpossibleUsage } from '../../server/platform/db/migrations/0049-impossible-usage.ts'
import type { Db } from '../../server/platform/db/open.ts'
import { type Client, client, colourRows, until } from '../support/client.ts'
import { full } from '../support/full.ts'
import { startApp, type TestApp } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'

const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-report-'))
const plansFile = path.join(folder, 'plans.json')
writeFileSync(
  plansFile,
  JSON.stringify({
    tiers: [
      { id: 'enterprise', name: 'E', requests_per_minute: null, requests_per_day: null, max_concurrent: null },
      { id: 'ten', name: 'Ten', requests_per_minute: null, requests_per_day: 10, max_concurrent: null },
    ],
    currency: 'EUR',
    default: { training_per_million_tokens: 3, input_per_million_tokens: 1, output_per_million_tokens: 2 },
  }),
)
let app: TestApp
let operator: Client
let db: Db
before(async () => {
  app = await startApp({ TUNERY_PLANS_FILE: plansFile })
  operator = client(app.url, (await app.services.accounts.createKey('operator', 'operator', app.owner.user_id)).key)
  db = await app.openDatabase()
})
after(async () => {
  await db.destroy()
  await app.stop()
  rmSync(folder, { recursive: true })
})

async function account(tier = 'enterprise') {
  const { body } = await operator.api('POST', '/operator/accounts', { name: 'a', tier, owner: { name: 'o' } })
  return { id: body.account.id as string, ...client(app.url, body.key) }
}
const ask = { messages: [{ role: 'user', content: 'Say something.' }], temperature: 0 }
const events = async (account_id: string) =>
  (
    await db
      .selectFrom('events')
      .selectAll()
      .where('account_id', '=', account_id)
      .where('type', '=', 'usage.threshold')
      .orderBy('created_at')
      .execute()
  ).map(({ data_json }) => JSON.parse(data_json))

test('usage is the sum of what clients were sent, by day, model, key and kind, with its cost', async () => {
  const mine = await account()
  const second = await mine.api('POST', '/keys', { name: 'second' })
  const other = client(app.url, second.body.key)
  await mine.api('POST', '/deployments', { name: 'named', model: tiny })
  const reported: Record<string, number>[] = []
  for (const [who, model, max_tokens] of [
    [mine, tiny, 3],
    [mine, 'named', 4],
    [other, 'named', 5],
  ] as const)
    reported.push((await who.api('POST', '/chat/completions', { ...ask, model, max_tokens })).body.usage)
  const sum = (field: string) => reported.reduce((total, row) => total + row[field]!, 0)
  // A report waits two seconds for the newest usage, which a busy machine may need longer to fold.
  const { body } = await until('the usage to be folded', async () => {
    const report = await mine.api('GET', '/usage?group_by=day,model,key,kind')
    return report.body.total.requests > 2 ? report : undefined
  })
  assert.equal(body.currency, 'EUR')
  assert.deepEqual(
    [body.total.requests, body.total.prompt_tokens, body.total.completion_tokens],
    [3, sum('prompt_tokens'), sum('completion_tokens')],
  )
  assert.ok(Math.abs(body.total.cost - (sum('prompt_tokens') + 2 * sum('completion_tokens')) / 1e6) < 1e-12)
  assert.ok(body.total.seconds > 0)
  const today = new Date().toISOString().slice(0, 10)
  const key_id = (await mine.api('GET', '/user/profile')).body.key.id
  const lines = body.items.map((item: Record<string, unknown>) => [
    item.day,
    item.model,
    item.model_id,
    item.key_id,
    item.kind,
    item.completion_tokens,
  ])
  assert.deepEqual(
    new Set(lines.map(String)),
    new Set(
      [
        [today, tiny, tiny, key_id, 'chat', 3],
        [today, 'named', tiny, key_id, 'chat', 4],
        [today, 'named', tiny, second.body.id, 'chat', 5],
      ].map(String),
    ),
  )
  const byModel = (await mine.api('GET', '/usage?group_by=model')).body.items
  assert.deepEqual(
    byModel.map((item: Record<string, unknown>) => [item.model, item.requests, item.day, item.key_id]),
    [
      [tiny, 1, undefined, undefined],
      ['named', 2, undefined, undefined],
    ].sort(),
  )
  assert.deepEqual((await mine.api('GET', '/usage?from=2001-01-01&to=2001-01-31')).body.items, [])
  assert.equal((await app.other.api('GET', '/usage')).body.total.requests, 0, 'another account sees its own only')
})

test('an account with an impossible count of tokens in its usage is answered again after the upgrade', async () => {
  const mine = await account()
  const huge = isPostgres(db) ? 2_000_000_000 : Number.MAX_SAFE_INTEGER
  const created_at = Date.now()
  const usage = (request_id: string, fields: object) => ({
    request_id: `${mine.id}.${request_id}`,
    created_at,
    account_id: mine.id,
    key_id: 'k',
    model: 'm',
    model_id: 'm',
    kind: 'chat' as const,
    prompt_tokens: 7,
    completion_tokens: 3,
    cached_tokens: 0,
    duration_ms: 1,
    first_token_ms: null,
    cost: 1,
    finish: 'complete' as const,
    trained_tokens: 0,
    ...fields,
  })
  const rows = [usage('1', {}), usage('2', { prompt_tokens: huge, cost: huge })]
  await db.transaction().execute((trx) => addUsage(trx, rows, created_at))
  const day = created_at - (created_at % 86_400_000)
  // Without requests any more, since they are kept for 90 days.
  const { request_id, created_at: _, finish, first_token_ms, ...sums } = usage('3', { model: 'old' })
  const old = { ...sums, day: day - 100 * 86_400_000, requests: 1, prompt_tokens: Number.MAX_SAFE_INTEGER }
  await db.insertInto('usage_days').values(old).execute()

  const told = { prompt_tokens: Number.MAX_SAFE_INTEGER, completion_tokens: 3, total_tokens: 2 ** 53 + 2 }
  const kept = {
    id: `chatcmpl-${mine.id}`,
    account_id: mine.id,
    model: 'm',
    metadata_json: '{}',
    request_json: JSON.stringify({ messages: [] }),
    response_json: JSON.stringify({ choices: [], usage: told }),
    expires_at: created_at + 86_400_000,
    created_at,
  }
  await db.insertInto('stored_completions').values(kept).execute()
  await db.transaction().execute((trx) => removeImpossibleUsage(trx as never))
  const stored = await db
    .selectFrom('stored_completions')
    .selectAll()
    .where('id', '=', kept.id)
    .executeTakeFirstOrThrow()
  assert.deepEqual(JSON.parse(stored.response_json).usage, { prompt_tokens: 0, completion_tokens: 3, total_tokens: 3 })
  const report = async (query = '') => {
    const { status, body } = await mine.api('GET', `/usage${query}`)
    assert.equal(status, 200, JSON.stringify(body))
    const { requests, prompt_tokens, completion_tokens, cost } = body.total
    return [requests, prompt_tokens, completion_tokens, cost]
  }
  assert.deepEqual(await report(), [2, 7, 6, 1])
  const from = new Date(old.day).toISOString().slice(0, 10)
  assert.deepEqual(await report(`?from=${from}&to=${from}`), [1, 0, 3, 0])
  const timeline = await mine.api('GET', '/usage/timeline?model=m')
  assert.deepEqual([timeline.status, timeline.body.total?.prompt_tokens], [200, 7])
  assert.equal((await operator.api('GET', '/operator/usage')).status, 200)

  const record = { ...usage('4', {}), prompt_tokens: Number.MAX_SAFE_INTEGER, first_token_ms: 1 }
  app.services.usage.record(record)
  assert.deepEqual(await report(), [3, 7, 9, 1], 'nor does the journal bring one into the database')
})

test('an invalid query gets the reason', async () => {
  for (const [query, pattern] of [
    ['from=2026-02-30', /from/],
    ['from=2026-02-02&to=2026-02-01', /after/],
    ['from=2020-01-01&to=2026-01-01', /366/],
    ['group_by=colour', /group_by/],
    ['group_by=', /group_by/],
    ['by=day', /by/],
  ] as const) {
    const { status, body } = await app.api('GET', `/usage?${query}`)
    assert.equal(status, 400, query)
    assert.match(body.error.message, pattern)
  }
})

test('a timeline has the step of its length, whole buckets, at most 1,500 of them and 90 days', async () => {
  const hour = 3_600_000
  const day = 24 * hour
  const end = Math.floor(Date.now() / day) * day
  const timeline = (from: number, to: number, step = '') => {
    const iso = (at: number) => encodeURIComponent(new Date(at).toISOString())
    return app.api('GET', `/usage/timeline?model=m&from=${iso(from)}&to=${iso(to)}${step && `&step=${step}`}`)
  }
  for (const [from, to, step, buckets] of [
    [end - 3 * hour, end, 'minute', 180],
    [end - 3 * hour, end + 1, 'hour', 4],
    [end - 7 * day, end, 'hour', 168],
    [end - 7 * day, end + 1, 'day', 8],
    [end - 90 * day, end, 'day', 90],
    // Minutes go back seven days.
    [end - 8 * day, end - 8 * day + hour, 'hour', 1],
  ] as const) {
    const { status, body } = await timeline(from, to)
    assert.deepEqual([status, body.step, body.buckets?.length], [200, step, buckets], JSON.stringify(body.error))
    assert.equal(Date.parse(body.from), from)
    assert.equal(Date.parse(body.buckets.at(-1).at), Date.parse(body.to) - { minute: 60_000, hour, day }[step])
  }
  assert.equal((await timeline(end - 25 * hour, end, 'minute')).body.buckets.length, 1500)
  assert.equal(Date.parse((await timeline(end + 1, end + 2, 'hour')).body.from), end, 'rounded down')
  for (const [from, to, step, message] of [
    [end - 25 * hour, end + 1, 'minute', /1501 buckets/],
    [end - 90 * day, end + 1, '', /90 days/],
    [end, end, '', /before/],
    [end - 8 * day, end - 8 * day + hour, 'minute', /7 days/],
  ] as const) {
    const { status, body } = await timeline(from, to, step)
    assert.equal(status, 400, JSON.stringify(body))
    assert.match(body.error.message, message)
  }
})

test('a job is metered once at its end; a cancelled one up to then, one that never ran not at all', full, async () => {
  const mine = await account()
  const dataset = (await mine.upload(colourRows(40))).body
  const create = async (training_config: object) =>
    (
      await mine.api('POST', '/fine-tuning/jobs', {
        model_id: tiny,
        dataset_id: dataset.id,
        config: { training_config },
      })
    ).body
  const job = await create({ epochs: 1 })
  const never = await create({ epochs: 1 })
  await mine.api('POST', `/fine-tuning/jobs/${never.id}/cancel`)
  const done = await until('the job to end', async () => {
    const { body } = await mine.api('GET', `/fine-tuning/jobs/${job.id}`)
    return body.status === 'completed' ? body : undefined
  })
  const long = await create({ epochs: 50, batch_size: 1 })
  await until(
    'some of it to be trained',
    async () => (await mine.api('GET', `/fine-tuning/jobs/${long.id}`)).body.trained_tokens > 0,
  )
  const cancelled = await mine.api('POST', `/fine-tuning/jobs/${long.id}/cancel`)
  assert.equal(cancelled.status, 200, JSON.stringify(cancelled.body))
  const { body } = await mine.api('GET', '/usage?group_by=kind')
  const tokens = done.trained_tokens + cancelled.body.trained_tokens
  assert.deepEqual(
    body.items.map(({ kind, requests, trained_tokens }: Record<string, unknown>) => [kind, requests, trained_tokens]),
    [['training', 2, tokens]],
  )
  assert.ok(Math.abs(body.total.cost - (3 * tokens) / 1e6) < 1e-12)
  const took = (Date.parse(done.finished_at) - Date.parse(done.started_at)) / 1000
  assert.ok(
    body.total.seconds >= took && body.total.seconds < took + 120,
    `${body.total.seconds} s in all; the first job took ${took} s`,
  )
})

test('a usage threshold is reported once per percentage and period, with the usage', async () => {
  const mine = await account('ten')
  const set = await mine.api('PUT', '/usage/thresholds', {
    tokens_per_month: 100,
    cost_per_month: 0.00001,
    percents: [100, 50, 50],
  })
  assert.deepEqual(set.body, {
    requests_per_day: null,
    tokens_per_month: 100,
    cost_per_month: 0.00001,
    percents: [50, 100],
  })
  assert.deepEqual((await mine.api('GET', '/usage/thresholds')).body, set.body)
  assert.equal((await mine.api('PUT', '/usage/thresholds', { percents: [0] })).status, 400)
  const used = []
  for (let n = 0; n < 4; n++) {
    const { usage } = (await mine.api('POST', '/chat/completions', { ...ask, model: tiny, max_tokens: 20 })).body
    used.push(usage.total_tokens)
  }
  await app.services.usage.fold()
  const reported = await until('all metrics to be reported', async () => {
    const crossings = await events(mine.id)
    return new Set(crossings.map(({ metric }) => metric)).size === 3 ? crossings : undefined
  })
  const of = (metric: string) => reported.filter((report) => report.metric === metric).map(({ percent }) => percent)
  assert.ok(used.reduce((sum, amount) => sum + amount) > 100)
  assert.deepEqual(
    [of('tokens_per_month'), of('cost_per_month')],
    [
      [50, 100],
      [50, 100],
    ],
  )
  assert.deepEqual(of('requests_per_day'), [50], '7 of the tier’s 10')
  const { period } = reported.find(({ metric }) => metric === 'requests_per_day')!
  assert.match(period.from, /T00:00:00\.000Z$/)
  assert.equal(Date.parse(period.to) - Date.parse(period.from), 86_400_000)
  const first = reported.find(({ metric }) => metric === 'tokens_per_month')!
  assert.match(first.period.from, /-01T00:00:00\.000Z$/)
  assert.ok(first.used >= (first.threshold * first.percent) / 100)
  await mine.api('POST', '/chat/completions', { ...ask, model: tiny, max_tokens: 20 })
  await app.services.usage.fold()
  for (let n = 0; n < 3; n++) await mine.api('GET', '/usage/thresholds')
  await until('the day to be used up', async () => (await events(mine.id)).length > reported.length)
  assert.deepEqual(
    (await events(mine.id)).slice(reported.length).map(({ metric, percent }) => [metric, percent]),
    [['requests_per_day', 100]],
    'nothing is reported twice',
  )
})
