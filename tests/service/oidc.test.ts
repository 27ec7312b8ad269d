// Signing in by an OpenID provider: a real one, and a browser that follows its redirects.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { up as addRights } from '../../server/platform/db/migrations/0054-rights.ts'
import { codeOf, newBrowser } from '../support/browser.ts'
import { client } from '../support/client.ts'
import { accountChoices, createBrowser as createBrowserAt, startOpenidProvider } from '../support/openid-provider.ts'
import { startApp, type TestApp } from '../support/service.ts'

type Provider = Awaited<ReturnType<typeof startOpenidProvider>>
let app: TestApp
let provider: Provider
const people = {
  anna: { email: 'Anna@example.com', email_verified: true },
  thief: { email: 'anna@example.com', email_verified: false },
  boss: { email: 'boss@example.com', email_verified: true },
  twice: { email: 'twice@example.com', email_verified: true },
  stranger: { email: 'stranger@example.com', email_verified: true },
  again: { email: 'again@example.com', email_verified: true },
  cut: { email: 'cut@example.com', email_verified: true },
  old: { email: 'old@example.com', email_verified: true },
  unproven: { email: 'unproven@example.com', email_verified: true },
  moved: { email: 'moved@example.com', email_verified: true },
  target: { email: 'target@example.com', email_verified: true },
  silent: {},
}

before(async () => {
  provider = await startOpenidProvider(people)
  app = await startApp({
    TUNERY_OIDC_ISSUER: provider.issuer,
    TUNERY_TRUSTED_PROXIES: '127.0.0.1',
    TUNERY_OIDC_CLIENT_ID: provider.client_id,
    TUNERY_OIDC_CLIENT_SECRET: provider.client_secret,
  })
  provider.register(`${app.url}/sign-in/oidc/callback`)
  await app.api('PUT', `/members/${app.owner.user_id}`, { email: 'boss@example.com' })
})
after(async () => {
  await app.stop()
  await provider.stop()
})

type Browser = ReturnType<typeof createBrowserAt>
let addresses = 0
/** Each at another address: an address may try 30 times a minute. */
const createBrowser = () => createBrowserAt({ 'x-forwarded-for': `192.0.2.${++addresses}` })
const isHere = (address: string) => address.startsWith(app.address) && !address.includes('/v1/')
const isCallback = (address: string) => address.startsWith(`${app.url}/sign-in/oidc/callback`)
const begin = (next = '') => `${app.url}/sign-in/oidc${next && `?next=${next}`}`
const cookieOf = (browser: ReturnType<typeof createBrowser>) => {
  const found = [...browser.cookies(new URL(app.address).host)].find(([name]) => name.startsWith('tunery_session'))
  return found?.join('=')
}

/**
 * Signs in as a person of the provider; returns where the browser ends, and whose session it has. `accept`: the member
 * whom they choose where they are asked.
 */
async function signIn(
  person: keyof typeof people,
  { next = '', browser = createBrowser(), accept }: { next?: string; browser?: Browser; accept?: string } = {},
) {
  provider.signInAs(person)
  let end = (await browser.follow(begin(next), isHere)).slice(app.address.length)
  if (accept !== undefined) {
    assert.equal(end, '/choose-account')
    const { status, body } = await accountChoices(browser, app.url).choose(accept)
    assert.equal(status, 200)
    end = body.next
  }
  const cookie = cookieOf(browser)
  const answer = cookie && (await fetch(`${app.url}/session`, { headers: { cookie } }))
  return { end, profile: answer ? ((await answer.json()) as { profile: { id: string } }).profile : undefined }
}
const addMember = async (email: string, client: { api: TestApp['api'] } = app) => {
  const { status, body } = await client.api('POST', '/members', { name: 'Someone', email })
  assert.equal(status, 201)
  return body.id as string
}

test(
  'a member with the verified email accepts the account once, and signs in, also after it has changed; nobody else ' +
    'does',
  async () => {
    assert.equal(((await (await fetch(`${app.url}/sign-in`)).json()) as { oidc: string }).oidc, 'single sign-on')
    const id = await addMember('anna@example.com')
    assert.deepEqual(await signIn('thief'), { end: '/sign-in?error=oidc_unverified', profile: undefined })
    assert.deepEqual(await signIn('silent'), { end: '/sign-in?error=oidc_unverified', profile: undefined })
    assert.deepEqual(await signIn('stranger'), { end: '/sign-in?error=oidc_no_account', profile: undefined })
    const first = await signIn('anna', { next: '/jobs?x=1%23there', accept: id })
    assert.deepEqual([first.end, first.profile?.id], ['/jobs?x=1#there', id])
    await app.api('PUT', `/members/${id}`, { email: 'anna@new.example.com' })
    assert.equal((await signIn('anna')).profile?.id, id)
    const { items } = (await app.api('GET', '/audit?limit=20')).body
    assert.ok(
      items.some((each: { action: string; target: string }) => each.action === 'identity.bound' && each.target === id),
    )
  },
)

test('no `next` leads to another site', async () => {
  const nexts = ['//evil.example', '/%09/evil.example', '/%5Cevil.example', '/%0A/evil.example', 'https://evil.example']
  for (const next of [...nexts, '/x/..//evil.example', '%5C%5Cevil.example', 'javascript:alert(1)']) {
    const { end } = await signIn('anna', { next })
    assert.equal(end, '/', next)
  }
})

test('an answer of the provider works once, for the browser and the sign-in that began', async () => {
  provider.signInAs('anna')
  const victim = createBrowser()
  const answer = await victim.follow(begin(), isCallback)
  const elsewhere = createBrowser()
  const open = async (browser: typeof victim, address = answer) => (await browser.open(address)).headers.get('location')
  // Another browser has no cookie, or that of another sign-in: it cannot be signed in as someone by their link.
  assert.equal(await open(elsewhere), '/sign-in?error=oidc_expired')
  await elsewhere.follow(begin(), isCallback)
  assert.equal(await open(elsewhere), '/sign-in?error=oidc_failed')
  const changed = answer.replace(/state=[^&]+/, 'state=x')
  const own = [...victim.cookies(new URL(app.address).host)].map((pair) => pair.join('=')).join('; ')
  assert.match(own, /^tunery_oidc=/)
  const replay = (address: string) =>
    fetch(address, { redirect: 'manual', headers: { cookie: own, 'x-forwarded-for': '192.0.2.200' } }).then(
      ({ headers }) => headers.get('location'),
    )
  assert.equal(await replay(changed), '/sign-in?error=oidc_failed')
  assert.equal(await replay(answer), '/')
  // The provider takes a code once, though the cookie is kept by who copied it.
  assert.equal(await replay(answer), '/sign-in?error=oidc_failed')
  assert.equal(await replay(`${answer.split('?')[0]}?error=access_denied`), '/sign-in?error=oidc_cancelled')
})

test('an address that another account enters first neither captures its owner nor keeps them out', async () => {
  // The admin of another account writes the email of someone, to get what they upload.
  const theirs = await addMember('twice@example.com', app.other)
  const browser = createBrowser()
  assert.deepEqual(await signIn('twice', { browser }), { end: '/choose-account', profile: undefined })
  const choices = accountChoices(browser, app.url)
  const one = { user_id: theirs, name: 'Someone', role: 'member', account: { name: 'other' } }
  assert.deepEqual((await choices.list()).body, { email: 'twice@example.com', items: [one] })
  const mine = await addMember('twice@example.com')
  assert.deepEqual(
    (await choices.list()).body.items.map(({ user_id }: { user_id: string }) => user_id),
    [theirs, mine],
  )
  // Nobody else is to be chosen, and nobody chooses who does not come from the provider.
  assert.deepEqual((await choices.choose(app.owner.user_id)).body.error.code, 'sign_in_failed')
  assert.equal((await accountChoices(createBrowser(), app.url).list()).body.error.code, 'sign_in_failed')
  assert.equal((await choices.choose(mine)).status, 200)
  assert.equal((await choices.choose(theirs)).body.error.code, 'sign_in_failed', 'an answer counts once')
  assert.equal((await signIn('twice')).profile?.id, mine, 'connected from now on')
})

test('the operator is connected only in their own session', async () => {
  // A key of the operator's may change their email, and must not be a way to their session.
  assert.deepEqual(await signIn('boss'), { end: '/sign-in?error=oidc_sign_in_first', profile: undefined })
  const session = newBrowser(app)
  await session.enter('boss@example.com')
  const browser = createBrowser()
  const [name = '', value = ''] = session.cookie().split('=')
  await browser.open(app.address)
  browser.cookies(new URL(app.address).host).set(name, value)
  assert.equal((await signIn('boss', { browser })).profile?.id, app.owner.user_id)
  assert.equal((await signIn('boss')).profile?.id, app.owner.user_id, 'connected from now on')
})

test('a connection to the provider is listed and removable: its sessions end; it must be accepted again', async () => {
  const id = await addMember('cut@example.com')
  const path = `/members/${id}/identities`
  assert.deepEqual((await app.api('GET', path)).body.items, [])
  const browser = createBrowser()
  assert.equal((await signIn('cut', { browser, accept: id })).profile?.id, id)
  const [identity, ...more] = (await app.api('GET', path)).body.items
  assert.deepEqual([identity.issuer, identity.email, more], [provider.issuer, 'cut@example.com', []])
  const own = await fetch(`${app.url}/user/identities`, { headers: { cookie: cookieOf(browser)! } })
  assert.deepEqual(await own.json(), { items: [identity] })
  assert.deepEqual(codeOf(await app.other.api('GET', path)), [404, 'member_not_found'])
  assert.deepEqual(codeOf(await app.other.api('DELETE', `${path}/${identity.id}`)), [404, 'member_not_found'])
  assert.deepEqual(codeOf(await app.api('DELETE', `${path}/idn_none`)), [404, 'identity_not_found'])
  assert.equal((await app.api('DELETE', `${path}/${identity.id}`)).status, 200)
  const ended = await fetch(`${app.url}/session`, { headers: { cookie: cookieOf(browser)! } })
  assert.equal(ended.status, 401)
  assert.deepEqual(await signIn('cut'), { end: '/choose-account', profile: undefined })
  // Accepted again it is the same connection; the member removes it too, and stays in the session that they do it in.
  const back = createBrowser()
  assert.equal((await signIn('cut', { browser: back, accept: id })).profile?.id, id)
  assert.equal((await app.api('GET', path)).body.items[0].id, identity.id)
  const other = createBrowser()
  assert.equal((await signIn('cut', { browser: other })).profile?.id, id)
  const cookie = cookieOf(back)!
  const { csrf_token } = (await (await fetch(`${app.url}/session`, { headers: { cookie } })).json()) as {
    csrf_token: string
  }
  const headers = { cookie, 'x-csrf-token': csrf_token }
  const removed = await fetch(`${app.url}/user/identities/${identity.id}`, { method: 'DELETE', headers })
  assert.equal(removed.status, 200)
  const statusOf = async (browser: Browser) =>
    (await fetch(`${app.url}/session`, { headers: { cookie: cookieOf(browser)! } })).status
  assert.deepEqual([await statusOf(back), await statusOf(other)], [200, 401])
  assert.deepEqual((await app.api('GET', path)).body.items, [])
  // An admin who changes the email too keeps them out.
  await app.api('PUT', `/members/${id}`, { email: 'other@example.com' })
  assert.deepEqual(await signIn('cut'), { end: '/sign-in?error=oidc_no_account', profile: undefined })
})

test('who was removed and invited again signs in as the new member', async () => {
  const first = await addMember('again@example.com')
  assert.equal((await signIn('again', { accept: first })).profile?.id, first)
  await app.api('DELETE', `/members/${first}`)
  assert.equal((await signIn('again')).end, '/sign-in?error=oidc_no_account')
  const second = await addMember('again@example.com')
  assert.equal((await signIn('again', { accept: second })).profile?.id, second)
})

test(
  'who signed in by a provider before emails were accepted need not choose; invitations end with the key that made ' +
    'them',
  async () => {
    const { db } = app
    const [old, unproven] = [await addMember('old@example.com'), await addMember('unproven@example.com', app.other)]
    assert.equal((await signIn('old', { accept: old })).profile?.id, old)
    // Bound with one email, and given that of somebody else since: it is not proven.
    const moved = await addMember('moved@example.com', app.other)
    assert.equal((await signIn('moved', { accept: moved })).profile?.id, moved)
    await app.other.api('PUT', `/members/${moved}`, { email: 'target@example.com' })
    const { id: key_id, key } = (await app.api('POST', '/keys', { name: 'inviting' })).body
    const invite = (by: Pick<TestApp, 'api'>) => by.api('POST', '/invitations', { name: 'Invited' })
    const byKey = (await invite(client(app.url, key))).body
    const page = newBrowser(app)
    await page.enter()
    const bySession = (await page.send('POST', '/invitations', { name: 'Invited' })).body
    // As it was: nobody knew when an email was proven, nor which key had invited. The provider has renamed the person.
    await db.deleteFrom('oidc_identities').where('user_id', '=', old).execute()
    await db.schema.dropIndex('oidc_identities_user').execute()
    for (const [table, column] of [
      ['users', 'email_accepted_at'],
      ['oidc_identities', 'email'],
      ['sign_in_tokens', 'key_id'],
    ] as const)
      await db.schema.alterTable(table).dropColumn(column).execute()
    await db.transaction().execute((trx) => addRights(trx as never))

    assert.equal((await signIn('old')).profile?.id, old, 'the audit log knows that the provider has proven it')
    assert.equal((await signIn('unproven')).end, '/choose-account', unproven)
    assert.equal((await signIn('target')).end, '/choose-account', moved)
    const accepted = await db.selectFrom('users').select('id').where('email_accepted_at', 'is not', null).execute()
    assert.ok(accepted.some(({ id }) => id === old) && !accepted.some(({ id }) => id === unproven))
    const tokens = await db.selectFrom('sign_in_tokens').select(['id', 'key_id']).execute()
    const keyOf = (id: string) => tokens.find((each) => each.id === id)!.key_id
    assert.deepEqual([keyOf(byKey.id), keyOf(bySession.id)], [key_id, null])
    await app.api('DELETE', `/keys/${key_id}`)
    const look = ({ link }: { link: string }) =>
      newBrowser(app).send('POST', '/sign-in/invitation/look', { token: new URL(link).hash.slice(1) })
    assert.deepEqual(codeOf(await look(byKey)), [400, 'link_invalid'])
    assert.equal((await look(bySession)).status, 200)
  },
)
