// Signing in to the dashboard: sessions, cross-site requests, links, passwords, passkeys, providers, invitations.
import assert from 'node:assert/strict'
import { once } from 'node:events'
import http from 'node:http'
import { before, test } from 'node:test'
import { createAuthenticator } from '../support/authenticator.ts'
import { codeOf, newBrowser } from '../support/browser.ts'
import { appOfTests } from '../support/service.ts'

const app = appOfTests()
before(async () => {
  await app.started
  await app.api('PUT', `/members/${app.owner.user_id}`, { email: 'owner@example.com' })
  const { id } = (await app.other.api('GET', '/members')).body.items[0]
  await app.other.api('PUT', `/members/${id}`, { email: 'other@example.com' })
})

const browser = (headers: Record<string, string> = {}) => newBrowser(app, headers)

test('a link signs in once, also if opened twice at once; then the session does what its role may', async () => {
  const { token } = await app.services.signIn.createLink()
  const [one, two] = [browser(), browser()]
  const answers = await Promise.all([one, two].map((browser) => browser.send('POST', '/sign-in/link', { token })))
  assert.deepEqual(answers.map(({ status }) => status).sort(), [200, 400])
  const [winner, loser] = answers[0]!.status === 200 ? [one, answers[1]!] : [two, answers[0]!]
  assert.deepEqual(codeOf(loser), [400, 'link_invalid'])
  const [cookie] = answers.find(({ status }) => status === 200)!.cookies
  assert.match(cookie!, /^tunery_session_[0-9a-f]{12}=[\w-]{43}; Max-Age=\d+; Path=\/; HttpOnly; SameSite=Lax$/)

  const { profile, scopes, session } = (await winner.send('GET', '/session')).body
  assert.equal(profile.id, app.owner.user_id)
  assert.equal(profile.key, null)
  assert.deepEqual([session.current, session.begun_by], [true, 'link'])
  assert.ok(scopes.includes('operator') && scopes.includes('members:write'))
  assert.equal((await winner.send('GET', '/operator/accounts')).status, 200)
  const answer = await winner.send('POST', '/keys', { name: 'from the dashboard' })
  assert.equal(answer.status, 201)
  const { items } = (await winner.send('GET', '/audit?limit=1')).body
  assert.deepEqual([items[0].action, items[0].by.kind, items[0].by.key_id], ['key.created', 'session', session.id])
  assert.deepEqual(codeOf((await app.api('GET', '/session')) as never), [403, 'session_required'])
})

test('what another site makes a browser send is refused: no token, other origin, subresource', async () => {
  const page = browser()
  await page.enter()
  const create = (more: Record<string, string>) => page.send('POST', '/keys', { name: 'x' }, more)
  assert.equal((await create({ origin: app.address, 'sec-fetch-site': 'same-origin' })).status, 201)
  assert.deepEqual(codeOf(await create({ 'x-csrf-token': '' })), [403, 'csrf_failed'])
  assert.deepEqual(codeOf(await create({ 'x-csrf-token': 'x'.repeat(43) })), [403, 'csrf_failed'])
  assert.deepEqual(codeOf(await create({ origin: 'https://evil.example' })), [403, 'csrf_failed'])
  assert.deepEqual(codeOf(await create({ 'sec-fetch-site': 'cross-site' })), [403, 'csrf_failed'])
  const get = (more: Record<string, string>) => page.send('GET', '/keys', undefined, more)
  assert.deepEqual(codeOf(await get({ 'sec-fetch-site': 'cross-site' })), [403, 'csrf_failed'])
  // A link that someone follows. Node's fetch would write its own mode.
  const headers = { cookie: page.cookie(), 'sec-fetch-site': 'cross-site', 'sec-fetch-mode': 'navigate' }
  const [followed] = (await once(http.get(`${app.url}/keys`, { headers }), 'response')) as [http.IncomingMessage]
  assert.equal(followed.resume().statusCode, 200)
  const login = { email: 'owner@example.com', password: 'x' }
  const forged = await browser().send('POST', '/sign-in/password', login, { origin: 'https://evil.example' })
  assert.deepEqual(codeOf(forged), [403, 'csrf_failed'])
  // A key needs no token: no browser sends it by itself.
  assert.equal((await app.api('POST', '/keys', { name: 'y' }, { origin: 'https://evil.example' })).status, 201)
})

test('a password is set, signs in, ends other sessions, and is neither guessable nor shown', async () => {
  const page = browser()
  const other = browser()
  await page.enter()
  await other.enter()
  const set = (body: object) => page.send('PUT', '/user/password', body)
  assert.deepEqual(codeOf(await set({ password: 'short' })), [400, 'invalid_request'])
  assert.deepEqual(codeOf(await set({ password: 'Password123' })), [400, 'password_refused'])
  assert.deepEqual(codeOf(await set({ password: 'owner@example.com' })), [400, 'password_refused'])
  assert.equal((await set({ password: 'a good one, Grüße' })).status, 200)
  assert.deepEqual(codeOf(await other.send('GET', '/session')), [401, 'session_ended'])
  assert.equal((await page.send('GET', '/session')).body.has_password, true)

  const again = browser()
  const signIn = (email: string, password: string) => again.send('POST', '/sign-in/password', { email, password })
  assert.deepEqual(codeOf(await signIn('owner@example.com', 'wrong wrong')), [401, 'sign_in_failed'])
  assert.deepEqual(codeOf(await signIn('nobody@example.com', 'wrong wrong')), [401, 'sign_in_failed'])
  // The same text, written with a combining mark.
  assert.equal((await signIn('Owner@Example.com', 'a good one, Grüße'.normalize('NFD'))).status, 200)
  await again.send('GET', '/session')
  const change = (current_password?: string) =>
    again.send('PUT', '/user/password', { password: 'another good one', ...(current_password && { current_password }) })
  assert.deepEqual(codeOf(await change()), [400, 'password_refused'])
  assert.equal((await change('a good one, Grüße')).status, 200)
  const rows = JSON.stringify([
    await app.db.selectFrom('audit').selectAll().execute(),
    await app.db.selectFrom('passwords').selectAll().execute(),
    await app.db.selectFrom('sessions').selectAll().execute(),
  ])
  for (const secret of ['a good one', 'another good', again.cookie().split('=')[1]!])
    assert.ok(!rows.includes(secret), secret)
  assert.match(rows, /\$argon2id\$v=19\$m=19456,t=2,p=1\$/)
})

test('guessing a password blocks who guesses, for longer each time, and nobody else', async () => {
  const { createSignInThrottle } = await import('../../server/features/sign-in/index.ts')
  let time = 0
  const throttle = createSignInThrottle(() => time)
  const email = 'a@example.com'
  const begin = (address = '192.0.2.1') =>
    throttle.begin(address, email).then(
      () => true,
      () => false,
    )
  // All at once: none is looked at beyond the fifth.
  const tries = await Promise.all(Array.from({ length: 20 }, () => begin()))
  assert.equal(tries.filter(Boolean).length, 5)
  assert.equal(await begin('192.0.2.2'), true)
  time += 15_001
  assert.equal(await begin(), true)
  time += 15_001
  assert.equal(await begin(), false, 'twice as long')
  time += 15_001
  assert.equal(await begin(), true)
  await throttle.succeed('192.0.2.1', email)
  assert.deepEqual([await begin(), await begin()], [true, true])
  const fromMany = await Promise.all(Array.from({ length: 150 }, (_, index) => begin(`198.51.100.${index}`)))
  assert.ok(fromMany.filter(Boolean).length <= 100, 'many addresses together')
  const many = await Promise.allSettled(Array.from({ length: 40 }, () => throttle.countRequest('192.0.2.9')))
  assert.equal(many.filter(({ status }) => status === 'rejected').length, 10)
})

test('sessions are listed and ended, one or all others; an ended one is refused and its cookie removed', async () => {
  const [mine, phone, laptop] = [browser({ 'user-agent': 'Mine/1' }), browser(), browser()]
  await mine.enter()
  const { session } = await phone.enter()
  await laptop.enter()
  const { token } = await app.services.signIn.createLink('other@example.com')
  const stranger = browser()
  await stranger.send('POST', '/sign-in/link', { token })
  await stranger.send('GET', '/session')
  for (const route of [`/sessions/${session.id}`, '/user/passkeys/psk_any'])
    assert.equal((await stranger.send('DELETE', route)).status, 404)
  assert.equal((await stranger.send('GET', '/sessions')).body.items.length, 1)
  const { items } = (await mine.send('GET', '/sessions')).body
  assert.equal(items.filter(({ current }: { current: boolean }) => current)[0].user_agent, 'Mine/1')
  assert.equal((await mine.send('DELETE', `/sessions/${session.id}`)).status, 200)
  const refused = await phone.send('GET', '/keys')
  assert.deepEqual(codeOf(refused), [401, 'session_ended'])
  assert.match(refused.cookies[0]!, /Max-Age=0/)
  assert.ok((await mine.send('DELETE', '/sessions')).body.ended >= 1)
  assert.equal((await laptop.send('GET', '/keys')).status, 401)
  assert.equal((await mine.send('DELETE', '/session')).status, 200)
  assert.equal((await mine.send('GET', '/session')).status, 401)
})

test('a session ends 30 days after its last use, 90 after its begin, and loses what its role loses', async () => {
  const page = browser()
  const { session } = await page.enter()
  const set = async (values: object) => {
    await app.db
      .transaction()
      .execute((trx) => trx.updateTable('sessions').set(values).where('id', '=', session.id).execute())
    await app.services.changes.announce(app.owner.account_id)
  }
  const day = 86_400_000
  await set({ last_used_at: Date.now() - 29 * day, created_at: Date.now() - 89 * day })
  assert.equal((await page.send('GET', '/session')).status, 200)
  await set({ last_used_at: Date.now() - 31 * day })
  assert.equal((await page.send('GET', '/session')).status, 401)
})

test('an invitation is shown once, says what it is, makes a member with that role, and is withdrawn', async () => {
  const admin = browser()
  await admin.enter()
  const invited = await admin.send('POST', '/invitations', { name: 'Vera', email: 'vera@example.com', role: 'viewer' })
  assert.equal(invited.status, 201)
  const token = new URL(invited.body.link).hash.slice(1)
  assert.equal(new URL(invited.body.link).pathname, '/invitation')
  const listed = (await admin.send('GET', '/invitations')).body.items
  assert.deepEqual([listed.length, JSON.stringify(listed).includes(token)], [1, false])

  const vera = browser()
  const looked = (await vera.send('POST', '/sign-in/invitation/look', { token })).body
  assert.deepEqual(
    [looked.name, looked.email, looked.role, looked.account.name],
    [...['Vera', 'vera@example.com', 'viewer', 'test']],
  )
  assert.equal((await vera.send('POST', '/sign-in/invitation', { token, password: 'vera likes it' })).status, 200)
  const { scopes } = (await vera.send('GET', '/session')).body
  assert.ok(scopes.includes('datasets:read') && !scopes.includes('datasets:write') && !scopes.includes('operator'))
  assert.deepEqual(codeOf(await vera.send('POST', '/invitations', { name: 'x' })), [403, 'insufficient_permissions'])
  assert.deepEqual(codeOf(await browser().send('POST', '/sign-in/invitation', { token })), [400, 'link_invalid'])

  // A promotion, and a removal, show at once.
  const { id } = invited.body.member
  await admin.send('PUT', `/members/${id}`, { role: 'member' })
  assert.ok((await vera.send('GET', '/session')).body.scopes.includes('datasets:write'))
  await admin.send('DELETE', `/members/${id}`)
  assert.deepEqual(codeOf(await vera.send('GET', '/session')), [401, 'session_ended'])

  const second = (await admin.send('POST', '/invitations', { name: 'Wim' })).body
  assert.equal((await admin.send('DELETE', `/invitations/${second.id}`)).status, 200)
  const gone = await browser().send('POST', '/sign-in/invitation', { token: new URL(second.link).hash.slice(1) })
  assert.deepEqual(codeOf(gone), [400, 'link_invalid'])
  const of = await app.other.api('GET', '/invitations')
  assert.deepEqual(of.body.items, [])
})

test('a passkey is added and signs in; a replayed, foreign or removed one does not', async () => {
  const local = app.address.replace('127.0.0.1', 'localhost')
  const asLocal = browser()
  const { send } = asLocal
  const ways = (await (await fetch(`${app.url}/sign-in`)).json()) as { passkey: boolean }
  assert.equal(ways.passkey, false, 'an address cannot have passkeys')
  const there = `${local}/v1`
  const original = app.url
  app.url = there
  try {
    await asLocal.enter()
    const device = createAuthenticator(local)
    const options = (await send('POST', '/user/passkeys/options', {})).body
    const added = await send('POST', '/user/passkeys', { name: 'laptop', response: device.create(options) })
    assert.equal(added.status, 201, JSON.stringify(added.body))

    const again = browser()
    const challenge = (await again.send('POST', '/sign-in/passkey/options', {})).body
    const signed = { response: device.get(challenge) }
    assert.equal((await again.send('POST', '/sign-in/passkey', signed)).status, 200)
    assert.equal((await again.send('GET', '/session')).body.has_passkey, true)
    const replayed = await browser().send('POST', '/sign-in/passkey', signed)
    assert.deepEqual(codeOf(replayed), [400, 'passkey_refused'])
    assert.match(replayed.body.error.message, /answered already/)
    const foreign = createAuthenticator(local)
    const fresh = (await browser().send('POST', '/sign-in/passkey/options', {})).body
    const other = await browser().send('POST', '/sign-in/passkey', { response: foreign.get(fresh) })
    assert.deepEqual(codeOf(other), [400, 'passkey_refused'])

    assert.equal((await send('DELETE', `/user/passkeys/${added.body.id}`)).status, 200)
    const late = (await browser().send('POST', '/sign-in/passkey/options', {})).body
    const removed = await browser().send('POST', '/sign-in/passkey', { response: device.get(late) })
    assert.deepEqual(codeOf(removed), [400, 'passkey_refused'])
  } finally {
    app.url = original
  }
})
