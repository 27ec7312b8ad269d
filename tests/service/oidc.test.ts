// Signing in by an OpenID provider: a real one, and a browser that follows its redirects.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { newBrowser } from '../support/browser.ts'
import { createBrowser as createBrowserAt, startOpenidProvider } from '../support/openid-provider.ts'
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

/** Signs in as a person of the provider; returns where the browser ends, and whose session it has. */
async function signIn(person: keyof typeof people, { next = '', browser = createBrowser() } = {}) {
  provider.signInAs(person)
  const end = (await browser.follow(begin(next), isHere)).slice(app.address.length)
  const cookie = cookieOf(browser)
  const answer = cookie && (await fetch(`${app.url}/session`, { headers: { cookie } }))
  return { end, profile: answer ? ((await answer.json()) as { profile: { id: string } }).profile : undefined }
}
const addMember = async (email: string, client: { api: TestApp['api'] } = app) => {
  const { status, body } = await client.api('POST', '/members', { name: 'Someone', email })
  assert.equal(status, 201)
  return body.id as string
}

test('a member with the verified email signs in, also after it has changed; nobody else does', async () => {
  assert.equal(((await (await fetch(`${app.url}/sign-in`)).json()) as { oidc: string }).oidc, 'single sign-on')
  const id = await addMember('anna@example.com')
  assert.deepEqual(await signIn('thief'), { end: '/sign-in?error=oidc_unverified', profile: undefined })
  assert.deepEqual(await signIn('silent'), { end: '/sign-in?error=oidc_unverified', profile: undefined })
  assert.deepEqual(await signIn('stranger'), { end: '/sign-in?error=oidc_no_account', profile: undefined })
  const first = await signIn('anna', { next: '/jobs?x=1%23there' })
  assert.deepEqual([first.end, first.profile?.id], ['/jobs?x=1#there', id])
  await app.api('PUT', `/members/${id}`, { email: 'anna@new.example.com' })
  assert.equal((await signIn('anna')).profile?.id, id)
  const { items } = (await app.api('GET', '/audit?limit=20')).body
  assert.ok(
    items.some((each: { action: string; target: string }) => each.action === 'identity.bound' && each.target === id),
  )
})

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

test('an email that two accounts have, or the operator, is connected only for who is signed in as that member', async () => {
  // The admin of another account writes the email of someone of this one, to get what they upload.
  const mine = await addMember('twice@example.com')
  await addMember('twice@example.com', app.other)
  assert.deepEqual(await signIn('twice'), { end: '/sign-in?error=oidc_sign_in_first', profile: undefined })
  // A key of the operator's may change their email, and must not be a way to their session.
  assert.deepEqual(await signIn('boss'), { end: '/sign-in?error=oidc_sign_in_first', profile: undefined })

  for (const [person, id, email] of [
    ['twice', mine, undefined],
    ['boss', app.owner.user_id, 'boss@example.com'],
  ] as const) {
    const session = newBrowser(app)
    // The link is made for the member, as two have the email.
    if (email) await session.enter(email)
    else {
      const invited = (await app.api('GET', `/members/${id}`)).body
      assert.equal(invited.id, id)
      const { token } = await linkFor(id)
      assert.equal((await session.send('POST', '/sign-in/link', { token })).status, 200)
    }
    const browser = createBrowser()
    const [name = '', value = ''] = session.cookie().split('=')
    await browser.open(app.address)
    browser.cookies(new URL(app.address).host).set(name, value)
    assert.equal((await signIn(person, { browser })).profile?.id, id)
    assert.equal((await signIn(person)).profile?.id, id, 'connected from now on')
  }
})

/** A link for one member, while no other has their email. */
async function linkFor(id: string) {
  const { email } = (await app.api('GET', `/members/${id}`)).body
  await app.api('PUT', `/members/${id}`, { email: 'for-the-link@example.com' })
  const link = await app.services.signIn.createLink('for-the-link@example.com')
  await app.api('PUT', `/members/${id}`, { email })
  return link
}

test('who was removed and invited again signs in as the new member', async () => {
  const first = await addMember('again@example.com')
  assert.equal((await signIn('again')).profile?.id, first)
  await app.api('DELETE', `/members/${first}`)
  assert.equal((await signIn('again')).end, '/sign-in?error=oidc_no_account')
  const second = await addMember('again@example.com')
  assert.equal((await signIn('again')).profile?.id, second)
})
