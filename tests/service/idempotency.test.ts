// A retry of a creating request with an Idempotency-Key creates nothing again, whatever happened in between.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import type { Db } from '../../server/platform/db/open.ts'
import { type Answer, colourRows } from '../support/client.ts'
import { onSqlite } from '../support/postgres.ts'
import { contractRoutes } from '../support/routes.ts'
import { startApp, type TestApp } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'

const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-idempotency-'))
const plansFile = path.join(folder, 'plans.json')
const tier = (id: string, requests_per_minute: number) => ({
  id,
  name: id,
  requests_per_minute,
  requests_per_day: null,
  max_concurrent: 100,
})
writeFileSync(plansFile, JSON.stringify({ tiers: [tier('enterprise', 10_000), tier('three', 3)] }))

let app: TestApp
let db: Db
before(async () => {
  app = await startApp({ TUNERY_PLANS_FILE: plansFile })
  db = await app.openDatabase()
})
after(async () => {
  await db.destroy()
  await app.stop()
  rmSync(folder, { recursive: true })
})

async function send(route: string, body: object | FormData, idempotencyKey: string, key = app.key) {
  const form = body instanceof FormData
  const response = await fetch(`${app.url}${route}`, {
    method: 'POST',
    headers: {
      authorization: `Bearer ${key}`,
      'idempotency-key': idempotencyKey,
      ...(!form && { 'content-type': 'application/json' }),
    },
    body: form ? body : JSON.stringify(body),
  })
  return {
    status: response.status,
    replayed: response.headers.get('idempotent-replayed'),
    body: (await response.json()) as Answer['body'],
  }
}
function upload(rows: string, fields: Record<string, string> = {}) {
  const form = new FormData()
  for (const [name, value] of Object.entries(fields)) form.append(name, value)
  form.append('file', new Blob([rows]), 'rows.jsonl')
  return form
}
const count = async (table: 'datasets' | 'api_keys' | 'deployments' | 'tuning_jobs' | 'exports' | 'accounts') =>
  Number((await db.selectFrom(table).select(db.fn.countAll().as('count')).executeTakeFirstOrThrow()).count)

test('a retry gets the first answer and creates nothing, also with other form boundaries', async () => {
  const key = randomUUID()
  const first = await send('/datasets', upload(colourRows(20), { name: 'colours' }), key)
  assert.deepEqual([first.status, first.replayed], [201, null])
  const before = await count('datasets')
  const again = await send('/datasets', upload(colourRows(20), { name: 'colours' }), key)
  assert.deepEqual(again, { status: 201, replayed: 'true', body: first.body })
  for (const other of [upload(colourRows(21), { name: 'colours' }), upload(colourRows(20), { name: 'other' })]) {
    const refused = await send('/datasets', other, key)
    assert.deepEqual([refused.status, refused.body.error.code], [400, 'idempotency_key_reused'])
  }
  assert.equal((await send('/keys', { name: 'x' }, key)).status, 400, 'nor can it be another operation')
  assert.equal(await count('datasets'), before)
  const job = { model_id: tiny, dataset_id: first.body.id }
  const [one, two] = [
    await send('/fine-tuning/jobs', job, 'a job'.replace(' ', '-')),
    await send('/fine-tuning/jobs', job, 'a-job'),
  ]
  assert.deepEqual([one.status, two.body.id, two.body.created_at], [201, one.body.id, one.body.created_at])
  await app.api('POST', `/fine-tuning/jobs/${one.body.id}/cancel`)
})

test('twenty concurrent requests with one key create one object', async () => {
  const key = randomUUID()
  const before = await count('api_keys')
  const answers = await Promise.all(Array.from({ length: 20 }, () => send('/keys', { name: 'once' }, key)))
  assert.deepEqual([...new Set(answers.map(({ status }) => status))], [201])
  assert.equal(new Set(answers.map(({ body }) => body.key)).size, 1, 'each is shown the same key')
  assert.equal(answers.filter(({ replayed }) => replayed === null).length, 1)
  assert.equal(await count('api_keys'), before + 1)
  const member = await app.api('POST', '/members', { name: 'another', role: 'member' })
  const theirs = (await app.api('POST', '/keys', { name: 'theirs', user_id: member.body.id })).body.key
  const stranger = await send('/keys', { name: 'once' }, key, theirs)
  assert.equal(stranger.body.error.code, 'idempotency_key_reused', 'another member is not shown it')
  await db.destroy()
  for (const file of onSqlite.skip ? [] : ['tunery.db', 'tunery.db-wal'])
    assert.ok(
      !readFileSync(path.join(app.dataDir, file)).includes(answers[0]!.body.key.slice(12)),
      `${file} holds no key in the clear`,
    )
  db = await app.openDatabase()
})

test('after a crash before the answer is stored, a retry creates nothing; a lost secret is reported', async () => {
  // Two minutes ago: a fresh answer may be on its way.
  const crash = () =>
    app.db
      .updateTable('idempotency_keys')
      .set({ answer_sealed: null, created_at: Date.now() - 120_000 })
      .execute()
  const named = await send('/deployments', { name: 'once', model: tiny }, 'deploy')
  const set = await send('/datasets', upload(colourRows(10)), 'upload')
  const key = await send('/keys', { name: 'lost' }, 'key')
  const { key: operator } = await app.services.accounts.createKey('operator', 'operator', app.owner.user_id)
  const account = await send('/operator/accounts', { name: 'one', owner: { name: 'o' } }, 'account', operator)
  assert.deepEqual(
    [named, set, key, account].map(({ status }) => status),
    [201, 201, 201, 201],
  )
  const before = [await count('deployments'), await count('datasets'), await count('api_keys'), await count('accounts')]
  await crash()
  const again = await send('/deployments', { name: 'once', model: tiny }, 'deploy')
  assert.deepEqual([again.status, again.replayed, again.body.id], [201, 'true', named.body.id])
  assert.equal((await send('/datasets', upload(colourRows(10)), 'upload')).body.id, set.body.id)
  for (const [route, body, name, made, who] of [
    ['/keys', { name: 'lost' }, 'key', key.body.id, app.key],
    ['/operator/accounts', { name: 'one', owner: { name: 'o' } }, 'account', account.body.account?.id, operator],
  ] as const) {
    const refused = await send(route, body, name, who)
    assert.deepEqual(
      [refused.status, refused.body.error.code, refused.body.error.details.created],
      [400, 'idempotency_key_reused', made],
    )
  }
  assert.deepEqual(
    [await count('deployments'), await count('datasets'), await count('api_keys'), await count('accounts')],
    before,
  )
})

test('a lost answer is made again without another request: the minute’s last one still gets it', async () => {
  const { key: operator } = await app.services.accounts.createKey('operator', 'operator', app.owner.user_id)
  const account = { name: 'three', tier: 'three', owner: { name: 'o' } }
  const { key } = (await send('/operator/accounts', account, randomUUID(), operator)).body
  const { body: first } = await send('/deployments', { name: 'few', model: tiny }, 'few', key)
  const uploaded = await send('/datasets', upload(colourRows(10)), 'few-rows', key)
  assert.equal(uploaded.status, 201)
  await app.db.updateTable('idempotency_keys').set({ answer_sealed: null }).execute()
  const last = await send('/deployments', { name: 'few', model: tiny }, 'few', key)
  assert.deepEqual([last.status, last.replayed, last.body.id], [201, 'true', first.id])
  const beyond = await send('/datasets', upload(colourRows(10)), 'few-rows', key)
  assert.deepEqual([beyond.status, beyond.body.error.code], [429, 'rate_limit_exceeded'])
})

test('failed requests may be retried; keys expire after a day, are per account, and must be valid', async () => {
  const key = randomUUID()
  assert.equal((await send('/deployments', { name: 'later', model: 'nothing' }, key)).status, 404)
  assert.equal((await send('/deployments', { name: 'later', model: tiny }, key)).status, 201)
  const other = await send('/deployments', { name: 'theirs', model: tiny }, key, app.otherKey)
  assert.deepEqual([other.status, other.replayed], [201, null])
  await app.db
    .updateTable('idempotency_keys')
    .set({ created_at: Date.now() - 24 * 3_600_000 })
    .execute()
  const next = await send('/deployments', { name: 'tomorrow', model: tiny }, key)
  assert.deepEqual([next.status, next.replayed], [201, null])
  const empty = upload('')
  assert.equal((await send('/datasets', empty, 'empty')).body.error.code, 'file_empty')
  assert.equal((await send('/datasets', upload(colourRows(3)), 'empty')).status, 201)
  for (const wrong of ['', 'x'.repeat(256), 'two words'])
    assert.equal((await send('/keys', { name: 'x' }, wrong)).status, 400, wrong)
})

test('an export that is requested twice is created once', async () => {
  const model = await app.colourModel()
  const [one, two] = [
    await send('/exports', { model, format: 'gguf' }, 'export'),
    await send('/exports', { model, format: 'gguf' }, 'export'),
  ]
  assert.deepEqual([one.status, two.replayed, two.body.id], [201, 'true', one.body.id])
  await app.db.updateTable('idempotency_keys').set({ answer_sealed: null }).where('key', '=', 'export').execute()
  assert.equal(
    (await send('/exports', { model, format: 'gguf' }, 'export')).body.id,
    one.body.id,
    'also where its answer was lost',
  )
  assert.equal(await count('exports'), 1)
  // It would still be made beside later tests.
  assert.equal((await app.api('DELETE', `/exports/${one.body.id}`)).status, 200)
})

test('an upload that is begun twice is one, and a roll-back that is repeated is not undone', async () => {
  const request = { filename: 'f.jsonl', purpose: 'batch', bytes: 100, mime_type: 'application/jsonl' }
  const uploads = await Promise.all([send('/uploads', request, 'upload'), send('/uploads', request, 'upload')])
  assert.equal(uploads[0]!.status, 200)
  assert.deepEqual(uploads[0]!.body, uploads[1]!.body)

  const model = await app.colourModel()
  await app.api('POST', '/deployments', { name: 'back', model: tiny })
  await app.api('PUT', '/deployments/back', { model })
  const [first, again] = [
    await send('/deployments/back/rollback', {}, 'back'),
    await send('/deployments/back/rollback', {}, 'back'),
  ]
  assert.deepEqual([first.status, first.body.model, again.replayed, again.body.model], [200, tiny, 'true', tiny])
  assert.equal((await app.api('GET', '/deployments/back')).body.model, tiny)
  assert.equal((await send('/deployments/back/rollback', {}, 'forth')).body.model, model)
})

test('each POST of the contract takes an Idempotency-Key, or does no more when it is repeated', async () => {
  const repeatable = [
    // They answer, look or count, and change nothing but usage.
    /^\/(chat\/completions|completions|embeddings|responses)(\/batch)?$/,
    /^\/datasets\/\{dataset_id\}\/validate$/,
    /^\/fine_tuning\/alpha\/graders\//,
    /^\/fine-tuning\/jobs\/estimate$/,
    /^\/share\//,
    // They set something to what it then is: ended, paused, running, named.
    /\/(cancel|pause|resume|complete|retry|download)$/,
    /^\/evals\/\{eval_id\}$/,
    /^\/chat\/completions\/(\{completion_id\}|delete)$/,
    /^\/fine_tuning\/checkpoints\//,
    // A part of an upload that is not named when it is completed goes with it.
    /^\/uploads\/\{upload_id\}\/parts$/,
    // People at a page, with no key.
    /^\/(sign-in\/|user\/passkeys\/options$)/,
  ]
  const unsafe = (await contractRoutes())
    .filter((route) => route.method === 'POST' && !(201 in route.responses) && !route.creates)
    .map(({ path }) => path)
    .filter((path) => !repeatable.some((each) => each.test(path)))
  assert.deepEqual(unsafe, [])
})
