// Tenant isolation: through no route can an account read, change or detect objects of another account.
import assert from 'node:assert/strict'
import { hash } from 'node:crypto'
import { mkdirSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { z } from 'zod'
import type { Route } from '../../contract/route.ts'
import { newId } from '../../lib/ids.ts'
import { exportDir } from '../../server/features/exports/store.ts'
import { client, colourRows } from '../support/client.ts'
import { same } from '../support/evaluations.ts'
import { createOneOfEach } from '../support/one-of-each.ts'
import { contractRoutes } from '../support/routes.ts'
import { startApp, type TestApp } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'

let app: TestApp
/** The objects of the first account, by the names of path parameters. */
const theirs: Record<string, string> = {}
/** Well-formed ids that do not exist. */
const nobodys: Record<string, string> = {}

before(async () => {
  app = await startApp({ TUNERY_STORE_COMPLETIONS: '1', TUNERY_SHARE_LINKS: 'on' })
  const { api } = app
  theirs.dataset_id = (await app.upload(colourRows(16))).body.id
  const request = { model_id: tiny, dataset_id: theirs.dataset_id, config: { training_config: { epochs: 1 } } }
  theirs.job_id = (await api('POST', '/fine-tuning/jobs', request)).body.id as string
  await api('POST', `/fine-tuning/jobs/${theirs.job_id}/cancel`)
  await app.untilEnded(theirs.job_id)
  theirs.model_id = await app.colourModel()
  const around = { model_id: theirs.model_id, dataset_id: theirs.dataset_id!, name: 'their-name' }
  // A dataset is a file too.
  Object.assign(theirs, await createOneOfEach(app, around), { file_id: theirs.dataset_id })
  theirs.export_id = await readyExport(theirs.model_id)
  const identity = { issuer: 'https://login.example.com', subject: 'someone', user_id: theirs.user_id!, created_at: 1 }
  await app.db.insertInto('oidc_identities').values(identity).execute()
  theirs.identity_id = (await api('GET', `/members/${theirs.user_id}/identities`)).body.items[0].id
  theirs.account_id = app.owner.account_id
  for (const [name, id] of Object.entries(theirs))
    nobodys[name] = id.startsWith('their-') ? 'some-name' : `${id.slice(0, -4)}zzzz`
})
after(() => app.stop())

/** An export as the service leaves it. To make one would take longer than all of these tests. */
async function readyExport(model_id: string): Promise<string> {
  const [id, now, content] = [newId('exp'), Date.now(), 'GGUF']
  const file = { name: 'adapter.gguf', size_bytes: content.length, sha256: hash('sha256', content) }
  mkdirSync(exportDir(app.dataDir, id), { recursive: true })
  writeFileSync(path.join(exportDir(app.dataDir, id), file.name), content)
  await app.db
    .insertInto('exports')
    .values({
      id,
      account_id: app.owner.account_id,
      model_id,
      format: 'gguf',
      merge: 0,
      status: 'ready',
      progress: 1,
      files_json: JSON.stringify([file]),
      crashes: 0,
      interruptions: 0,
      created_at: now,
      started_at: now,
      finished_at: now,
    })
    .execute()
  const { body } = await app.api('GET', `/exports/${id}`)
  assert.deepEqual([body.status, body.files], ['ready', [file]])
  return id
}

const messages = [{ role: 'user', content: 'hello' }]
/** A valid body for each route that takes one, for the account that owns `ids`. */
const bodies: Record<string, (ids: Record<string, string>) => object | undefined> = {
  'POST /chat/completions': ({ model_id }) => ({ model: model_id, messages, max_tokens: 1 }),
  'POST /chat/completions/batch': ({ name }) => ({ model: name, requests: [{ messages }], max_tokens: 1 }),
  'POST /responses': ({ response_id }) => ({ model: tiny, input: 'hi', previous_response_id: response_id }),
  'POST /completions': ({ name }) => ({ model: name, prompt: 'x', max_tokens: 1 }),
  'POST /embeddings': ({ model_id }) => ({ model: model_id, input: ['x'] }),
  'POST /fine-tuning/jobs': ({ dataset_id }) => ({ model_id: tiny, dataset_id }),
  'POST /fine-tuning/jobs/estimate': ({ model_id, dataset_id }) => ({ model_id, dataset_id }),
  'PATCH /datasets/{dataset_id}': () => ({ name: 'renamed' }),
  'PATCH /fine-tuning/jobs/{job_id}': () => ({ name: 'renamed' }),
  'PATCH /fine-tuning/models/{model_id}': () => ({ name: 'renamed' }),
  'POST /fine-tuning/models/{model_id}/shares': () => ({}),
  'POST /deployments': ({ model_id }) => ({ name: 'mine', model: model_id }),
  'PUT /deployments/{name}': () => ({ model: tiny }),
  'PUT /deployments/{name}/scaling': () => ({ scaling: { min_replicas: 0, max_replicas: 1 } }),
  'POST /exports': ({ model_id }) => ({ model: model_id, format: 'gguf' }),
  'POST /fine_tuning/jobs': ({ dataset_id }) => ({ model: tiny, training_file: dataset_id }),
  'POST /fine_tuning/checkpoints/{checkpoint*}/permissions': () => ({ project_ids: ['x'] }),
  'POST /evaluations': ({ model_id, dataset_id }) => ({ model: model_id, dataset: dataset_id, graders: [same] }),
  'POST /chat/completions/{completion_id}': () => ({ metadata: { x: 'y' } }),
  'POST /chat/completions/delete': () => ({ filter: {} }),
  'POST /datasets/from-completions': () => undefined,
  'POST /evals': () => undefined,
  'POST /invitations': () => undefined,
  'POST /evals/{eval_id}': () => ({ name: 'renamed' }),
  'POST /fine_tuning/alpha/graders/run': () => undefined,
  'POST /fine_tuning/alpha/graders/validate': () => undefined,
  'POST /evals/{eval_id}/runs': ({ dataset_id }) => ({
    data_source: { type: 'completions', model: tiny, source: { type: 'file_id', id: dataset_id } },
  }),
  'POST /uploads': () => undefined,
  'POST /batches': ({ file_id }) => ({ input_file_id: file_id, endpoint: '/v1/completions', completion_window: '24h' }),
  'POST /uploads/{upload_id}/complete': () => ({ part_ids: ['part_x'] }),
  'POST /keys': ({ user_id }) => ({ name: 'k', user_id }),
  'PUT /keys/{key_id}': () => ({ name: 'renamed' }),
  'POST /members': () => undefined,
  'PUT /members/{user_id}': () => ({ role: 'viewer' }),
  'PUT /usage/thresholds': () => undefined,
  'POST /webhooks': () => undefined,
  'PUT /webhooks/{webhook_id}': () => ({ disabled: true }),
  'POST /operator/accounts': () => ({ name: 'x', owner: { name: 'x' } }),
  'PUT /operator/accounts/{account_id}': () => ({ tier: 'free' }),
}

/** Parameters of paths that are places within an object. */
const places: Record<string, string> = { step: '1' }

const withIds = (route: Route, ids: Record<string, string>) =>
  route.path.replace(/\{(\w+)\*?\}/g, (_, name) =>
    encodeURIComponent(ids[name] ?? places[name] ?? assert.fail(`the test has no ${name} for ${route.path}`)),
  )

/** A response without the ids of the request and the fields that differ in every response. */
function comparable({ status, text: original }: { status: number; text: string }, ids: Record<string, string>): string {
  let text = `${status} ${original}`
  for (const [name, id] of Object.entries(ids)) text = text.replaceAll(id, `<${name}>`)
  return text
    .replace(/req_\w+|chatcmpl-\w+/g, '<request>')
    .replace(/"(created|created_at|retry_after_seconds|resets_at)":[^,}]+/g, '"$1":…')
}

async function ask(key: string, method: string, route: string, body?: object) {
  const headers = { authorization: `Bearer ${key}`, ...(body && { 'content-type': 'application/json' }) }
  const response = await fetch(app.url + route, { method, headers, ...(body && { body: JSON.stringify(body) }) })
  return { status: response.status, text: await response.text() }
}

/** Routes for keys; sign-in.test.ts has those of sessions, and those for everyone. */
const keyRoutes = async () => (await contractRoutes()).filter(({ scope }) => scope !== 'public' && scope !== 'session')

/** Everything that the first account has, as it sees it. */
async function state() {
  const seen: Record<string, unknown> = {}
  for (const route of await keyRoutes()) {
    if (route.method !== 'GET' || /usage|profile|audit|operator|^\/hub/.test(route.path)) continue
    seen[route.path] = (await ask(app.key, 'GET', withIds(route, theirs))).text.replace(/"last_used_at":[^,}]+/g, '')
  }
  return seen
}

test("every route answers for another account's objects as for unknown ids, and changes nothing", async () => {
  const before = await state()
  const audit = (await app.api('GET', '/audit')).body.items.length
  let checked = 0
  for (const route of await keyRoutes()) {
    const name = `${route.method} ${route.path}`
    if (route.body && !bodies[name] && !z.safeParse(route.body, undefined).success)
      assert.fail(`the test has no body for ${name}`)
    const named = /\{/.test(route.path)
    if (!named && !bodies[name]?.(theirs)) continue
    // Base models of the hub are public.
    if (route.path.startsWith('/hub/')) continue
    const asOther = (ids: Record<string, string>) =>
      ask(app.otherKey, route.method, withIds(route, ids), bodies[name]?.(ids))
    if (route.path === '/graders/secrets/{name}') {
      // Every name has a secret, another one in each account.
      const own = await ask(app.key, route.method, withIds(route, theirs))
      assert.notEqual((await asOther(theirs)).text, own.text)
      continue
    }
    const [their, nobody] = [await asOther(theirs), await asOther(nobodys)]
    // A batch reports an error for each of its requests; a filter finds nothing.
    assert.ok(
      [400, 403, 404].includes(their.status) || /^POST \/chat\/completions\/(batch|delete)$/.test(name),
      `${name}: ${their.status} ${their.text}`,
    )
    assert.equal(comparable(their, theirs), comparable(nobody, nobodys), name)
    checked++
  }
  assert.ok(checked > 25, `${checked} routes were checked`)
  assert.deepEqual(await state(), before)
  assert.equal(
    (await app.api('GET', '/audit')).body.items.length,
    audit,
    'nothing was done in the name of the first account',
  )
})

test("lists have only the account's own objects, and cannot be continued after others' ids", async () => {
  for (const route of await keyRoutes()) {
    if (route.method !== 'GET' || /\{|^\/hub|^\/operator/.test(route.path)) continue
    const query = route.path === '/usage/timeline' ? '?model=mine' : ''
    const { status, body } = await app.other.api('GET', route.path + query)
    assert.equal(status, 200, route.path)
    for (const [name, id] of Object.entries(theirs))
      assert.ok(!JSON.stringify(body).includes(id), `${route.path} discloses the ${name} of another`)
  }
  for (const [list, name] of [
    ['/datasets', 'dataset_id'],
    ['/files', 'file_id'],
    ['/fine-tuning/jobs', 'job_id'],
    ['/fine_tuning/jobs', 'job_id'],
    ['/fine-tuning/models', 'model_id'],
    ['/deployments', 'name'],
    ['/exports', 'export_id'],
    ['/keys', 'key_id'],
    ['/members', 'user_id'],
    ['/webhooks', 'webhook_id'],
  ] as const) {
    const after = (ids: Record<string, string>) => ask(app.otherKey, 'GET', `${list}?after=${ids[name]}`)
    const [their, nobody] = [await after(theirs), await after(nobodys)]
    assert.equal(their.status, 404, list)
    assert.equal(comparable(their, theirs), comparable(nobody, nobodys), list)
  }
})

test('a name or Idempotency-Key of one account is free for the other', async () => {
  const mine = await app.other.api(
    'POST',
    '/deployments',
    { name: theirs.name, model: tiny },
    { 'idempotency-key': 'same' },
  )
  assert.equal(mine.status, 201)
  const reused = await app.api('POST', '/keys', { name: 'x' }, { 'idempotency-key': 'same' })
  assert.equal(reused.status, 201)
  const answer = await client(app.url, app.key).api('POST', '/chat/completions', {
    model: theirs.name,
    messages,
    max_tokens: 1,
  })
  assert.equal(answer.status, 200)
})
