// What keeps others out: guesses, neighbours, proxies, old hashes, suspended accounts, roles, secrets in answers.
import assert from 'node:assert/strict'
import { argon2Sync } from 'node:crypto'
import { once } from 'node:events'
import http from 'node:http'
import { after, before, beforeEach, test } from 'node:test'
import { ownPath } from '../../server/features/sign-in/routes.ts'
import { codeOf, newBrowser } from '../support/browser.ts'
import { client, until } from '../support/client.ts'
import { startApp, type TestApp } from '../support/service.ts'

let app: TestApp
before(async () => {
  app = await startApp({ TUNERY_TRUSTED_PROXIES: '127.0.0.1', TUNERY_PUBLIC_URL: 'https://tunery.example' })
})
after(() => app.stop())

/** Each test comes from another address. */
let address = 0
beforeEach(() => void address++)
const from = (number = address) => ({ 'x-forwarded-for': `192.0.2.${number}` })
const browser = (headers: Record<string, string> = {}) => newBrowser(app, { ...from(), ...headers })
const signIn = (email: string, password: string, headers: Record<string, string> = from()) =>
  newBrowser(app, headers).send('POST', '/sign-in/password', { email, password })

/** A member with a password, and the page that set it. */
async function person(email: string, password: string, role = 'member') {
  const invited = await app.api('POST', '/invitations', { name: email, email, role })
  const page = browser()
  const token = new URL(invited.body.link).hash.slice(1)
  assert.equal((await page.send('POST', '/sign-in/invitation', { token, password })).status, 200)
  await page.send('GET', '/session')
  return { page, id: invited.body.member.id as string }
}

test('behind TLS the cookie is bound to the host; a proxy may hide its name if the address is set', async () => {
  const page = browser({ 'x-forwarded-proto': 'https' })
  const { token } = await app.services.signIn.createLink()
  const { cookies } = await page.send('POST', '/sign-in/link', { token })
  assert.match(cookies[0]!, /^__Host-tunery_session=[\w-]{43}; Max-Age=\d+; Path=\/; HttpOnly; SameSite=Lax; Secure$/)
  await page.send('GET', '/session')
  const create = (origin: string) => page.send('POST', '/keys', { name: 'x' }, { origin })
  assert.equal((await create('https://tunery.example')).status, 201)
  assert.deepEqual(codeOf(await create('https://tunery.example.evil.test')), [403, 'csrf_failed'])
  assert.deepEqual(codeOf(await create('null')), [403, 'csrf_failed'])
  // The cookie of another port, or of plain http, is no session of this one.
  const stolen = page.cookie().replace('__Host-', '')
  assert.equal((await browser({ cookie: stolen }).send('GET', '/session')).status, 401)
  const invited = await page.send('POST', '/invitations', { name: 'x' })
  assert.match(invited.body.link, /^https:\/\/tunery\.example\/invitation#[\w-]{43}$/)
})

test('a frame of another page on this host is refused, though it navigates', async () => {
  const page = browser()
  await page.enter()
  const get = async (site: string, dest: string) => {
    const headers = {
      cookie: page.cookie(),
      'sec-fetch-site': site,
      'sec-fetch-mode': 'navigate',
      'sec-fetch-dest': dest,
    }
    const [answer] = (await once(http.get(`${app.url}/keys`, { headers }), 'response')) as [http.IncomingMessage]
    return answer.resume().statusCode
  }
  assert.deepEqual([await get('same-site', 'iframe'), await get('same-site', 'document')], [403, 200])
  assert.equal(await get('none', 'document'), 200)
})

test('spaces and capitals around an email are no other tries, and nobody learns which emails are known', async () => {
  await person('kim@example.com', 'a password of kim')
  const email = (index: number) => `${' '.repeat(index)}Kim@example.com`
  for (let index = 0; index < 5; index++)
    assert.deepEqual(codeOf(await signIn(email(index), 'wrong')), [401, 'sign_in_failed'])
  const blocked = await signIn(email(9), 'a password of kim')
  assert.deepEqual(codeOf(blocked), [429, 'rate_limit_exceeded'])
  assert.equal((await signIn('kim@example.com', 'a password of kim', from(200))).status, 200)

  for (let index = 0; index < 5; index++)
    assert.deepEqual(codeOf(await signIn('nobody@example.com', 'wrong')), [401, 'sign_in_failed'])
  const unknown = await signIn('nobody@example.com', 'wrong')
  const text = ({ body }: typeof unknown) => body.error.message.replace(/\d+/g, 'N')
  assert.equal(text(unknown), text(blocked))
  const timeOf = async (address: number, email: string) => {
    const times: number[] = []
    for (let count = 0; count < 4; count++) {
      const before = performance.now()
      await signIn(email, 'wrong', from(address))
      times.push(performance.now() - before)
    }
    return Math.min(...times)
  }
  const [known, other] = [await timeOf(201, 'kim@example.com'), await timeOf(202, 'nobody@example.com')]
  assert.ok(other > known / 3, `${other} ms for an unknown email, ${known} ms for a known one`)
})

test('wrong keys from an address block keys, and sign nobody out', async () => {
  const page = browser()
  await page.enter()
  const wrong = client(app.url, 'tny_wrong')
  for (let count = 0; count < 31; count++) await wrong.api('GET', '/keys', undefined, from())
  assert.equal((await wrong.api('GET', '/keys', undefined, from())).status, 429)
  assert.equal((await page.send('GET', '/keys')).status, 200)
})

test('a hash made with other parameters is made again at the next sign-in', async () => {
  const { id } = await person('old@example.com', 'a password of old')
  const nonce = Buffer.alloc(16, 7)
  const weak = { message: 'another password', nonce, parallelism: 1, tagLength: 32, memory: 1024, passes: 1 }
  const [salt, tag] = [nonce, argon2Sync('argon2id', weak)].map((each) => each.toString('base64').replaceAll('=', ''))
  const hash = `$argon2id$v=19$m=1024,t=1,p=1$${salt}$${tag}`
  await app.db
    .transaction()
    .execute((trx) => trx.updateTable('passwords').set({ hash }).where('user_id', '=', id).execute())
  assert.equal((await signIn('old@example.com', 'another password')).status, 200)
  const row = await app.db.selectFrom('passwords').selectAll().where('user_id', '=', id).executeTakeFirstOrThrow()
  assert.match(row.hash, /^\$argon2id\$v=19\$m=19456,t=2,p=1\$/)
  assert.equal((await signIn('old@example.com', 'another password')).status, 200)
})

test('who is in two accounts signs in to the one whose password it is', async () => {
  await person('two@example.com', 'password of the first')
  const invited = await app.other.api('POST', '/invitations', { name: 'Two', email: 'TWO@example.com' })
  const page = browser()
  const accept = { token: new URL(invited.body.link).hash.slice(1), password: 'password of the second' }
  assert.equal((await page.send('POST', '/sign-in/invitation', accept)).status, 200)
  const accountOf = async (password: string) => {
    const again = browser()
    await again.send('POST', '/sign-in/password', { email: 'two@example.com', password })
    return (await again.send('GET', '/session')).body.profile.account.name
  }
  assert.deepEqual(
    [await accountOf('password of the first'), await accountOf('password of the second')],
    ['test', 'other'],
  )
})

test('only the operator’s session carries that scope; a role that is lost is lost in the session too', async () => {
  const { account } = (await app.other.api('GET', '/user/profile')).body
  const owner = (await app.other.api('GET', '/members')).body.items.find(
    ({ role }: { role: string }) => role === 'owner',
  )
  await app.other.api('PUT', `/members/${owner.id}`, { email: 'boss@example.com' })
  const boss = browser()
  const { profile, scopes } = await boss.enter('boss@example.com')
  assert.deepEqual(
    [profile.account.id, scopes.includes('members:write'), scopes.includes('operator')],
    [account.id, true, false],
  )
  assert.deepEqual(codeOf(await boss.send('GET', '/operator/accounts')), [403, 'insufficient_permissions'])
  assert.deepEqual(codeOf(await boss.send('POST', '/keys', { name: 'x', scopes: ['operator'] })), [
    ...[403, 'insufficient_permissions'],
  ])

  const { page, id } = await person('admin@example.com', 'a password of admin', 'admin')
  assert.equal((await page.send('GET', '/audit')).status, 200)
  const invite = (role: string) => page.send('POST', '/invitations', { name: 'x', role })
  assert.deepEqual(codeOf(await invite('owner')), [403, 'insufficient_permissions'])
  assert.equal((await invite('admin')).status, 201)
  await app.api('PUT', `/members/${id}`, { role: 'viewer' })
  assert.deepEqual(codeOf(await page.send('GET', '/audit')), [403, 'insufficient_permissions'])
  assert.deepEqual(codeOf(await invite('viewer')), [403, 'insufficient_permissions'])
})

test('in a suspended account a session may do nothing but end', async () => {
  const { key } = await app.services.accounts.createKey('operator', 'operator', app.owner.user_id)
  const operator = client(app.url, key)
  const email = 'held@example.com'
  const made = await operator.api('POST', '/operator/accounts', { name: 'Held', owner: { name: 'Held', email } })
  const page = browser()
  await page.enter(email)
  await operator.api('PUT', `/operator/accounts/${made.body.account.id}`, { status: 'suspended' })
  for (const route of ['/session', '/keys'])
    assert.deepEqual(codeOf(await page.send('GET', route)), [403, 'account_suspended'])
  assert.equal((await page.send('DELETE', '/session')).status, 200)
  assert.equal(page.cookie(), undefined)
})

test('a removed member leaves no password, passkey or session behind, and a name may come back', async () => {
  const { page, id } = await person('gone@example.com', 'a password of gone')
  await app.api('DELETE', `/members/${id}`)
  assert.equal((await page.send('GET', '/session')).status, 401)
  assert.deepEqual(codeOf(await signIn('gone@example.com', 'a password of gone')), [401, 'sign_in_failed'])
  for (const table of ['sessions', 'passwords', 'sign_in_tokens'] as const)
    assert.deepEqual(await app.db.selectFrom(table).selectAll().where('user_id', '=', id).execute(), [])
  await person('gone@example.com', 'a newer password of gone')
})

test('the profile tells the session, and a member has 100 of them at most', async () => {
  const { page } = await person('many@example.com', 'a password of many')
  const { profile, session } = (await page.send('GET', '/session')).body
  const { id, created_at, expires_at } = session
  assert.deepEqual(profile.session, { id, created_at, expires_at })
  assert.equal(Date.parse(expires_at) - Date.parse(created_at), 30 * 86_400_000)
  assert.equal((await app.api('GET', '/user/profile')).body.session, null)
  for (let count = 0; count < 100; count++) {
    const { token } = await app.services.signIn.createLink('many@example.com')
    await app.services.signIn.withLink(token, { user_agent: `device ${count}`, address: '192.0.2.1' })
  }
  // Lookups are cached for half a second.
  await until('the oldest session to end', async () => (await page.send('GET', '/session')).status === 401)
})

test('refusals repeat nothing of what was typed, and big bodies are not read before a sign-in', async () => {
  const secret = 'hunter2hunter2'
  const post = (route: string, body: string) =>
    fetch(app.url + route, { method: 'POST', headers: { ...from(), 'content-type': 'application/json' }, body })
  for (const body of [`{"email":"a","password":"${secret}}`, `{"password":"${secret}"}`, `"${secret}"`, `${secret}`])
    for (const route of ['/sign-in/password', '/sign-in/link', '/sign-in/invitation']) {
      const answer = await (await post(route, body)).text()
      assert.ok(!answer.includes(secret.slice(0, 4)), answer)
    }
  const huge = await post('/sign-in/link', JSON.stringify({ token: 'x'.repeat(100_000) }))
  assert.equal(huge.status, 413)
  const page = browser()
  await page.enter()
  const short = await page.send('PUT', '/user/password', { password: 'hunter2', current_password: secret })
  assert.ok(short.status === 400 && !JSON.stringify(short.body).includes('hunter'), JSON.stringify(short.body))
})

test('an invitation without an email takes no password, which nobody could sign in with', async () => {
  const invited = await app.api('POST', '/invitations', { name: 'No email' })
  const token = new URL(invited.body.link).hash.slice(1)
  const page = browser()
  const refused = await page.send('POST', '/sign-in/invitation', { token, password: 'a password of none' })
  assert.deepEqual(codeOf(refused), [400, 'invalid_request'])
  assert.equal((await page.send('POST', '/sign-in/invitation', { token })).status, 200)
  await page.send('GET', '/session')
  const password = 'a password of someone'
  assert.equal((await page.send('PUT', '/user/password', { password, email: 'some@example.com' })).status, 200)
  assert.equal((await signIn('some@example.com', password)).status, 200)
})

test('without an operator, a link of the command line makes the first owner one, and logs it', async () => {
  const set = (operator: number) =>
    app.db.transaction().execute((trx) =>
      trx
        .updateTable('users')
        .set({ operator })
        .where('operator', '=', 1 - operator)
        .where('id', '=', app.owner.user_id)
        .execute(),
    )
  await set(0)
  const page = browser()
  const { scopes, profile } = await page.enter()
  assert.deepEqual([profile.id, scopes.includes('operator')], [app.owner.user_id, true])
  const { items } = (await page.send('GET', '/audit?limit=10')).body
  assert.ok(items.some(({ action }: { action: string }) => action === 'operator.appointed'))
})

test('a path to go back to is one of this service, as browsers read it', () => {
  const elsewhere = [
    '//evil.test',
    '/\\evil.test',
    '\\\\evil.test',
    '/\t/evil.test',
    '\n//evil.test',
    '/.//evil.test',
    '/a/..//evil.test',
  ]
  for (const given of [...elsewhere, 'https://evil.test', 'javascript:alert(1)', undefined, ['/a'], ''])
    assert.equal(ownPath(given), '/', String(given))
  assert.equal(ownPath('/jobs/job_1?tab=log#end'), '/jobs/job_1?tab=log#end')
})
