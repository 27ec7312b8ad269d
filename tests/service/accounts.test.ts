// Keys, members, roles, accounts and the audit log: what each may do, and what is disclosed to whom.
import assert from 'node:assert/strict'
import { before, test } from 'node:test'
import Fastify from 'fastify'
import { roleScopes, scopePresets, scopes } from '../../contract/scopes.ts'
import { newKey } from '../../lib/key-format.ts'
import { firstOwner, operatorUser } from '../../server/features/accounts/index.ts'
import { requireScopes } from '../../server/platform/http/auth.ts'
import { allowed } from '../support/allowed-time.ts'
import { newBrowser } from '../support/browser.ts'
import { type Answer, type Client, client, colourRows, until } from '../support/client.ts'
import { appOfTests, startApp, type TestApp } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'

const app = appOfTests()
let operator: Client
before(async () => {
  await app.started
  const { key } = await app.services.accounts.createKey('operator', 'operator', app.owner.user_id)
  operator = client(app.url, key)
})

const as = ({ body }: Answer) => client(app.url, body.key)
const codeOf = ({ status, body }: Pick<Answer, 'status' | 'body'>) => [status, body.error?.code]

/** A member with a role, and a client with a key of that member. */
async function member(role: string) {
  const { body } = await app.api('POST', '/members', { name: `a ${role}`, role })
  const answer = await app.api('POST', '/keys', { name: `key of the ${role}`, user_id: body.id })
  assert.equal(answer.status, 201, JSON.stringify(answer.body))
  return { id: body.id as string, key: answer.body, ...as(answer) }
}

test('a key makes keys that end no later, the operator’s end soon, an account has so many at once', async () => {
  const at = (days: number) => new Date(Date.now() + days * 86_400_000).toISOString()
  const make = (by: Pick<TestApp, 'api'>, body: object) => by.api('POST', '/keys', { name: 'k', ...body })
  const expires_at = at(10)
  const { key } = (await make(app, { expires_at })).body
  const ending = client(app.url, key)
  for (const later of [null, undefined, at(11)])
    assert.deepEqual(codeOf(await make(ending, { expires_at: later })), [400, 'invalid_request'])
  assert.equal((await make(ending, { expires_at: at(9) })).status, 201)
  assert.equal((await make(ending, { expires_at })).status, 201)

  const operator = newBrowser(app)
  await operator.enter()
  const ask = (expires_at: string | null) =>
    operator.send('POST', '/keys', { name: 'k', scopes: ['operator', 'profile:read'], expires_at })
  for (const later of [null, at(40)]) assert.deepEqual(codeOf(await ask(later)), [400, 'invalid_request'])
  assert.equal((await ask(at(30))).status, 201)
  // Who suspends their own account could not undo it.
  const address = `/operator/accounts/${app.owner.account_id}`
  assert.deepEqual(codeOf(await operator.send('PUT', address, { status: 'suspended' })), [400, 'in_use'])
  assert.equal((await operator.send('PUT', address, { name: 'test' })).status, 200)

  const few = await startApp({ TUNERY_MAX_KEYS: '2' })
  try {
    const { id } = (await make(few, {})).body
    assert.deepEqual(codeOf(await make(few, {})), [400, 'too_many'])
    await few.api('DELETE', `/keys/${id}`)
    assert.equal((await make(few, {})).status, 201)
    assert.equal((await make(few.other, {})).status, 201, 'another account has its own')
  } finally {
    await few.stop()
  }
})

test('a key is shown once, works, can be renamed, shows its prefix and last use, and stops when revoked', async () => {
  const answer = await app.api('POST', '/keys', { name: 'ci', scopes: 'inference' })
  assert.equal(answer.status, 201)
  const { key, ...rest } = answer.body
  assert.match(key, /^tny_[0-9A-Za-z]{36}$/)
  assert.deepEqual(
    [rest.name, rest.scopes, rest.status, rest.expires_at, rest.last_used_at],
    ['ci', scopePresets.inference, 'active', null, null],
  )
  assert.equal(rest.prefix, key.slice(0, 12))
  const mine = as(answer)
  assert.equal((await mine.api('GET', '/user/profile')).body.key.id, rest.id)
  const renamed = await app.api('PUT', `/keys/${rest.id}`, { name: 'ci 2' })
  assert.deepEqual([renamed.status, renamed.body.name], [200, 'ci 2'])
  const listed = await app.api('GET', '/keys')
  assert.ok(!JSON.stringify(listed.body).includes(key.slice(12)), 'a list shows no key')
  const seen = listed.body.items.find(({ id }: { id: string }) => id === rest.id)
  assert.deepEqual([seen.name, seen.prefix], ['ci 2', rest.prefix])
  await app.services.accounts.flush()
  assert.match((await app.api('GET', `/keys/${rest.id}`)).body.last_used_at, /^\d{4}-.*:00\.000Z$/)
  assert.deepEqual((await app.api('DELETE', `/keys/${rest.id}`)).body, { id: rest.id, deleted: true })
  assert.deepEqual(codeOf(await mine.api('GET', '/user/profile')), [401, 'invalid_api_key'])
  assert.deepEqual(codeOf(await app.api('GET', `/keys/${rest.id}`)), [404, 'key_not_found'])
  assert.deepEqual(codeOf(await app.api('DELETE', `/keys/${rest.id}`)), [404, 'key_not_found'])
})

test('a key revoked by another process is refused within a second; an expired key at its expiry', async () => {
  const answer = await app.api('POST', '/keys', { name: 'elsewhere' })
  assert.equal((await as(answer).api('GET', '/user/profile')).status, 200)
  const db = await app.openDatabase()
  await db.updateTable('api_keys').set({ revoked_at: Date.now() }).where('id', '=', answer.body.id).execute()
  await db.destroy()
  const revoked = Date.now()
  await until('it to be refused', async () => (await as(answer).api('GET', '/user/profile')).status === 401)
  assert.ok(Date.now() - revoked < allowed(1000))

  const expires_at = new Date(Date.now() + 400).toISOString()
  const short = await app.api('POST', '/keys', { name: 'short', expires_at })
  assert.equal((await as(short).api('GET', '/user/profile')).status, 200)
  await until('it to expire', async () => (await as(short).api('GET', '/user/profile')).status === 401)
  assert.ok(Date.now() >= Date.parse(expires_at))
  assert.equal((await app.api('GET', `/keys/${short.body.id}`)).body.status, 'expired')
  assert.deepEqual(codeOf(await app.api('POST', '/keys', { name: 'late', expires_at: '2020-01-01T00:00:00Z' })), [
    400,
    'invalid_request',
  ])
})

test('who just lost key or session makes no key, member or link, though a server still knows them', async () => {
  const { accounts, sessions } = { accounts: app.services.accounts, sessions: newBrowser(app) }
  const { id, key } = (await app.api('POST', '/keys', { name: 'soon revoked' })).body
  const byKey = (await accounts.findKey(key))!
  const revoked = await app.api('DELETE', `/keys/${id}`)
  assert.equal(revoked.status, 200)
  const { session } = await sessions.enter()
  const bySession = { ...byKey, kind: 'session' as const, key_id: session.id }
  await sessions.send('DELETE', `/sessions/${session.id}`)
  for (const [caller, code] of [
    [byKey, 'invalid_api_key'],
    [bySession, 'session_ended'],
  ] as const) {
    const refused = { code }
    const { keys, members } = accounts
    await assert.rejects(keys.create(caller, { name: 'k', scopes: 'full', expires_at: null }), refused)
    await assert.rejects(members.add(caller, { name: 'm', role: 'viewer', email: null }), refused)
    await assert.rejects(app.services.signIn.invite(caller, { name: 'm', role: 'viewer', email: null }), refused)
    const raise = members.change(caller, app.owner.user_id, { email: 'x@example.com' })
    await assert.rejects(raise, refused)
  }
  // The same for rights: a server may still know the role that a member had.
  const demoted = await member('admin')
  const asAdmin = (await accounts.findKey(demoted.key.key))!
  const request = { name: 'm', role: 'admin', email: null } as const
  const { id: user_id } = await accounts.members.add(asAdmin, request)
  const ofAnother = { name: 'k', scopes: 'full', expires_at: null, user_id } as const
  await accounts.keys.create(asAdmin, ofAnother)
  await app.api('PUT', `/members/${demoted.id}`, { role: 'member' })
  await assert.rejects(accounts.members.add(asAdmin, request), { code: 'insufficient_permissions' })
  await assert.rejects(accounts.keys.create(asAdmin, ofAnother), { code: 'member_not_found' })
})

test('malformed, unknown and missing keys are refused alike', async () => {
  const typo = app.key.slice(0, -1) + (app.key.endsWith('0') ? '1' : '0')
  for (const key of [typo, newKey(), 'tny_short', `${app.key}x`, '"', ''])
    assert.deepEqual(codeOf(await client(app.url, key).api('GET', '/user/profile')), [401, 'invalid_api_key'], key)
})

test('a well-formed key that shares only the stored start with a good one is refused', async () => {
  const { id, key } = (await app.api('POST', '/keys', { name: 'same start' })).body
  const forged = newKey()
  await app.db
    .updateTable('api_keys')
    .set({ prefix: forged.slice(0, 12) })
    .where('id', '=', id)
    .execute()
  for (const wrong of [forged, key])
    assert.deepEqual(codeOf(await client(app.url, wrong).api('GET', '/user/profile')), [401, 'invalid_api_key'])
})

test('nobody can create a key with more permissions than their own', async () => {
  const reader = as(await app.api('POST', '/keys', { name: 'reader', scopes: ['keys:read', 'keys:write', 'hub:read'] }))
  const answer = await reader.api('POST', '/keys', { name: 'full?', scopes: 'full' })
  assert.deepEqual(answer.body.scopes.toSorted(), ['hub:read', 'keys:read', 'keys:write'])
  const more = await reader.api('POST', '/keys', { name: 'more', scopes: ['hub:read', 'datasets:write'] })
  assert.deepEqual(codeOf(more), [403, 'insufficient_permissions'])
  assert.equal(more.body.error.details.scope, 'datasets:write')
  assert.deepEqual(codeOf(await app.api('POST', '/keys', { name: 'ruler', scopes: ['operator'] })), [
    403,
    'insufficient_permissions',
  ])
  assert.deepEqual(codeOf(await app.api('POST', '/keys', { name: 'ruler', scopes: 'operator' })), [
    400,
    'invalid_request',
  ])
})

test('a role limits all keys of its member as soon as it changes', async () => {
  for (const role of ['viewer', 'member', 'admin'] as const) {
    const user = await member(role)
    const { body } = await user.api('GET', '/user/profile')
    assert.deepEqual([body.role, body.key.scopes.toSorted()], [role, roleScopes[role].toSorted()])
    const upload = await user.upload('{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}')
    assert.equal(upload.status, role === 'viewer' ? 403 : 201, role)
    if (role === 'viewer') assert.equal(upload.body.error.details.scope, 'datasets:write')
    assert.equal((await user.api('GET', '/audit')).status, role === 'admin' ? 200 : 403)
  }
  const changing = await member('member')
  assert.equal((await app.api('PUT', `/members/${changing.id}`, { role: 'viewer' })).body.role, 'viewer')
  assert.deepEqual(codeOf(await changing.api('DELETE', '/deployments/none')), [403, 'insufficient_permissions'])
  await app.api('PUT', `/members/${changing.id}`, { role: 'member' })
  assert.deepEqual(codeOf(await changing.api('DELETE', '/deployments/none')), [404, 'deployment_not_found'])
  await app.api('DELETE', `/members/${changing.id}`)
  assert.deepEqual(codeOf(await changing.api('GET', '/user/profile')), [401, 'invalid_api_key'])
  assert.deepEqual(codeOf(await app.api('GET', `/members/${changing.id}`)), [404, 'member_not_found'])
})

test('members manage their own keys, admins all keys; only owners manage owners, and one must remain', async () => {
  const [one, two, admin] = [await member('member'), await member('member'), await member('admin')]
  const ids = (answer: Answer) => answer.body.items.map(({ id }: { id: string }) => id)
  assert.deepEqual(ids(await one.api('GET', '/keys')), [one.key.id])
  for (const [method, body] of [['GET'], ['PUT', { name: 'mine now' }], ['DELETE']] as const)
    assert.deepEqual(codeOf(await one.api(method, `/keys/${two.key.id}`, body)), [404, 'key_not_found'])
  assert.deepEqual(codeOf(await one.api('POST', '/keys', { name: 'yours', user_id: two.id })), [
    404,
    'member_not_found',
  ])
  assert.ok(ids(await admin.api('GET', '/keys?limit=100')).includes(two.key.id))
  assert.equal((await admin.api('DELETE', `/keys/${two.key.id}`)).status, 200)
  assert.deepEqual(codeOf(await two.api('GET', '/user/profile')), [401, 'invalid_api_key'])

  const owner = app.owner.user_id
  for (const answer of [
    await admin.api('PUT', `/members/${owner}`, { role: 'viewer' }),
    await admin.api('DELETE', `/members/${owner}`),
    await admin.api('PUT', `/members/${admin.id}`, { role: 'owner' }),
    await admin.api('POST', '/members', { name: 'me', role: 'owner' }),
    await admin.api('POST', '/keys', { name: 'as the owner', user_id: owner }),
    await admin.api('DELETE', `/keys/${ids(await app.api('GET', '/keys?limit=100')).at(-1)}`),
  ])
    assert.deepEqual([...codeOf(answer), answer.body.error.details.role], [403, 'insufficient_permissions', 'owner'])
  assert.deepEqual(codeOf(await app.api('DELETE', `/members/${owner}`)), [400, 'in_use'])
  assert.deepEqual(codeOf(await app.api('PUT', `/members/${owner}`, { role: 'admin' })), [400, 'in_use'])
  const email = 'Same@example.com'
  await app.api('PUT', `/members/${one.id}`, { email })
  assert.deepEqual(codeOf(await app.api('POST', '/members', { name: 'twin', email: 'same@example.com' })), [
    400,
    'name_taken',
  ])
})

test('a key for another member may do what their role may, and nothing else', async () => {
  const admin = await member('admin')
  const viewer = await member('viewer')
  const create = (scopes: unknown) => admin.api('POST', '/keys', { name: 'k', user_id: viewer.id, scopes })
  const scopesOf = ({ body }: Answer) => new Set(body.scopes)
  const allowed = new Set<string>(roleScopes.viewer)
  assert.deepEqual(scopesOf(await create('full')), allowed)
  const { accounts } = app.services
  assert.deepEqual(new Set((await accounts.createKey('k', 'full', viewer.id)).scopes), allowed)
  for (const scopes of [['members:write'], ['members:write', ...allowed]])
    assert.deepEqual(codeOf(await create(scopes)), [400, 'invalid_request'])

  // A server may still know that a member was an owner.
  const owner = await member('owner')
  const asOwner = (await accounts.findKey(owner.key.key))!
  await app.api('PUT', `/members/${owner.id}`, { role: 'admin' })
  const { user_id } = app.owner
  const request = { name: 'k', scopes: 'full', expires_at: null, user_id } as const
  await assert.rejects(accounts.keys.create(asOwner, request), { code: 'insufficient_permissions' })
})

test('lists continue after an entry of the own account only, and changes of members and keys are logged', async () => {
  const added = (await app.api('POST', '/members', { name: 'Ada', email: 'Ada@Example.com' })).body
  assert.equal(added.email, 'ada@example.com')
  await app.api('PUT', `/members/${added.id}`, { name: 'Ada L.' })
  const { id } = (await app.api('POST', '/keys', { name: 'before' })).body
  await app.api('PUT', `/keys/${id}`, { name: 'after' })
  const { items } = (await app.api('GET', '/audit?limit=4')).body
  const entries = items.map(({ action, target }: { action: string; target: string }) => [action, target])
  assert.deepEqual(entries, [
    ['key.renamed', id],
    ['key.created', id],
    ['member.changed', added.id],
    ['member.added', added.id],
  ])
  const elsewhere = (await operator.api('POST', '/operator/accounts', { name: 'Else', owner: { name: 'E' } })).body
  const list = async (after: string) => codeOf(await app.api('GET', `/members?after=${after}`))
  assert.deepEqual(await list(elsewhere.owner.id), [404, 'member_not_found'])
  const [foreign] = (await client(app.url, elsewhere.key).api('GET', '/keys')).body.items
  assert.deepEqual(codeOf(await app.api('GET', `/keys?after=${foreign.id}`)), [404, 'key_not_found'])
  const page = async (after = '') => (await operator.api('GET', `/operator/accounts?limit=1${after}`)).body.items[0].id
  const newest = await page()
  assert.notEqual(await page(`&after=${newest}`), newest)
  const renamed = { name: 'Elsewhere' }
  await operator.api('PUT', `/operator/accounts/${newest}`, renamed)
  assert.equal((await operator.api('GET', `/operator/accounts/${newest}`)).body.name, renamed.name)
})

test('the operator creates, changes and suspends accounts; others cannot see that other accounts exist', async () => {
  const answer = await operator.api('POST', '/operator/accounts', {
    name: 'Acme',
    tier: 'free',
    owner: { name: 'Ada', email: 'ada@example.com' },
  })
  assert.equal(answer.status, 201, JSON.stringify(answer.body))
  const { account, owner } = answer.body
  assert.deepEqual([account.tier, account.status, account.members, owner.role], ['free', 'active', 1, 'owner'])
  const ada = as(answer)
  const profile = (await ada.api('GET', '/user/profile')).body
  assert.deepEqual([profile.account.id, profile.tier.id], [account.id, 'free'])
  for (const [method, route, body] of [
    ['GET', '/operator/accounts'],
    ['GET', `/operator/accounts/${account.id}`],
    ['PUT', `/operator/accounts/${account.id}`, { tier: 'enterprise' }],
    ['POST', '/operator/accounts', { name: 'x', owner: { name: 'x' } }],
  ] as const)
    for (const other of [ada, app])
      assert.deepEqual(codeOf(await other.api(method, route, body)), [403, 'insufficient_permissions'])
  assert.deepEqual(codeOf(await operator.api('PUT', `/operator/accounts/${account.id}`, { tier: 'gold' })), [
    400,
    'invalid_request',
  ])
  assert.deepEqual(codeOf(await operator.api('GET', '/operator/accounts/acc_none')), [404, 'account_not_found'])
  assert.equal((await operator.api('PUT', `/operator/accounts/${account.id}`, { tier: 'pro' })).body.tier, 'pro')
  assert.equal((await ada.api('GET', '/user/profile')).body.tier.id, 'pro')
  await operator.api('PUT', `/operator/accounts/${account.id}`, { status: 'suspended' })
  assert.deepEqual(codeOf(await ada.api('GET', '/user/profile')), [403, 'account_suspended'])
  await operator.api('PUT', `/operator/accounts/${account.id}`, { status: 'active' })
  assert.equal((await ada.api('GET', '/user/profile')).status, 200)
  const ids = (await operator.api('GET', '/operator/accounts?limit=100')).body.items.map(({ id }: { id: string }) => id)
  assert.ok(ids.includes(account.id) && ids.includes(app.owner.account_id))
})

test('the operator is an owner who is marked so: nobody else, and nobody who was removed', async () => {
  const found = async () => [(await firstOwner(app.db))?.id, (await operatorUser(app.db))?.id]
  const mark = (id: string, values: object) => app.db.updateTable('users').set(values).where('id', '=', id).execute()
  const owner = app.owner.user_id
  const [older, removed] = [await member('admin'), await member('owner')]
  for (const { id } of [older, removed]) await mark(id, { created_at: 0, operator: 1 })
  await mark(removed.id, { removed_at: 1 })
  try {
    assert.deepEqual(await found(), [owner, owner])
    await mark(owner, { operator: 0 })
    assert.deepEqual(await found(), [owner, undefined])
  } finally {
    await mark(owner, { operator: 1 })
    await mark(older.id, { operator: 0 })
  }
})

test('the audit log shows who did what, only to its account, and has no secrets', async () => {
  const answer = await operator.api('POST', '/operator/accounts', { name: 'Logged', owner: { name: 'Lin' } })
  const lin = as(answer)
  const key = await lin.api('POST', '/keys', { name: 'another' })
  await lin.api('DELETE', `/keys/${key.body.id}`)
  await operator.api('PUT', `/operator/accounts/${answer.body.account.id}`, { tier: 'pro' })
  const { items } = (await lin.api('GET', '/audit')).body
  const entries = items.map(({ action, by }: { action: string; by: { kind: string } }) => `${action} by ${by.kind}`)
  assert.deepEqual(entries, [
    'account.changed by operator',
    'key.revoked by key',
    'key.created by key',
    'key.created by operator',
    'account.created by operator',
  ])
  assert.deepEqual([items[1].target, items[1].by.user_id], [key.body.id, answer.body.owner.id])
  assert.deepEqual(
    [items[0].by.user_id, items[0].by.key_id],
    [null, null],
    'whose key the operator used is none of the account’s business',
  )
  for (const secret of [key.body.key, answer.body.key]) assert.ok(!JSON.stringify(items).includes(secret.slice(12)))
  assert.ok(!JSON.stringify((await app.api('GET', '/audit?limit=100')).body).includes(key.body.id))
  assert.deepEqual(codeOf(await lin.api('GET', `/audit?after=${(await app.api('GET', '/audit')).body.items[0].id}`)), [
    404,
    'not_found',
  ])
})

test("every scope belongs to a role, and no preset for accounts includes the operator's scope", () => {
  assert.deepEqual(roleScopes.owner.toSorted(), scopes.toSorted())
  for (const preset of ['full', 'inference', 'read_only'] as const)
    assert.ok(!(scopePresets[preset] as readonly string[]).includes('operator'))
})

test('a route with no scope, or an unknown one, prevents the service from starting', async () => {
  for (const config of [undefined, {}, { route: { scope: 'everything' } }]) {
    const fastify = Fastify()
    requireScopes(fastify)
    assert.throws(() => fastify.get('/v1/open', { config: config as object }, () => 'open'), /states no scope/)
    fastify.get('/health/live', () => 'ok')
    await fastify.close()
  }
})

test('changes to datasets, jobs and deployments are in the audit log', async () => {
  const account = as(await operator.api('POST', '/operator/accounts', { name: 'Doing', owner: { name: 'Dora' } }))
  const dataset = await account.upload(colourRows(8))
  const job = await account.api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id: dataset.body.id })
  await account.api('POST', `/fine-tuning/jobs/${job.body.id}/cancel`)
  await account.api('POST', `/fine-tuning/jobs/${job.body.id}/cancel`)
  await account.api('POST', '/deployments', { model: tiny, name: 'doing' })
  await account.api('DELETE', '/deployments/doing')
  await account.api('DELETE', `/datasets/${dataset.body.id}`)
  const { items } = (await account.api('GET', '/audit')).body
  const done = items
    .map(({ action }: { action: string }) => action)
    .filter((action: string) => !/^(key|account)/.test(action))
  assert.deepEqual(done, [
    'dataset.deleted',
    'deployment.deleted',
    'deployment.created',
    'job.cancelled',
    'job.created',
    'dataset.created',
  ])
})
