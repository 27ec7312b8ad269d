// Becoming a member by a first sign-in at an OpenID provider, and providers that are away.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { readConfig } from '../../server/config.ts'
import { createLog, createServices } from '../../server/services.ts'
import { codeOf, newBrowser } from '../support/browser.ts'
import { accountChoices, createBrowser, startOpenidProvider } from '../support/openid-provider.ts'
import { startApp, type TestApp } from '../support/service.ts'

const people = {
  // The name would reverse what stands behind it.
  sam: { email: 'Sam@Corp.example', email_verified: true, name: 'Sam\u202eple' },
  pat: { email: 'pat@corp.example', email_verified: true, name: 'Pat Doe' },
  zoe: { email: 'zoe@corp.example.evil.test', email_verified: true },
  kim: { email: 'kim@corp.example', email_verified: true, name: 'Kim Lee' },
  eve: { email: 'eve@corp.example', email_verified: false },
  ann: { email: 'ann@corp.example', email_verified: true },
}
let app: TestApp
let provider: Awaited<ReturnType<typeof startOpenidProvider>>
before(async () => {
  provider = await startOpenidProvider(people)
  app = await startApp({
    TUNERY_OIDC_ISSUER: provider.issuer,
    TUNERY_OIDC_CLIENT_ID: provider.client_id,
    TUNERY_OIDC_CLIENT_SECRET: provider.client_secret,
    TUNERY_OIDC_NAME: 'Corp',
    TUNERY_OIDC_SIGN_UP: 'Corp.example, other.example',
    TUNERY_OIDC_SIGN_UP_ROLE: 'member',
    TUNERY_TRUSTED_PROXIES: '127.0.0.1',
  })
  provider.register(`${app.url}/sign-in/oidc/callback`)
})
after(async () => {
  await app.stop()
  await provider.stop()
})

let addresses = 0
/**
 * Signs in from a new address; returns where the browser ends, and the profile of its session. `accept`: the member as
 * whom they continue where they are asked, or null for a new one.
 */
async function signIn(person: keyof typeof people, accept?: string | null) {
  provider.signInAs(person)
  const browser = createBrowser({ 'x-forwarded-for': `192.0.2.${++addresses}` })
  const here = (address: string) => address.startsWith(app.address) && !address.includes('/v1/')
  const end = await browser.follow(`${app.url}/sign-in/oidc`, here)
  if (accept !== undefined) assert.equal((await accountChoices(browser, app.url).choose(accept)).status, 200)
  const { profile } = (await (await browser.open(`${app.url}/session`)).json()) as {
    profile?: { id: string; name: string; role: string; account: { id: string } }
  }
  return { end: end.slice(app.address.length), profile }
}
const noAccount = { end: '/sign-in?error=oidc_no_account', profile: undefined }

test('people of domains that may sign up become members of the operator’s account, until removed', async () => {
  const { profile } = await signIn('sam')
  assert.deepEqual([profile?.name, profile?.role, profile?.account.id], ['sam', 'member', app.owner.account_id])
  assert.equal((await signIn('sam')).profile?.id, profile!.id)
  assert.equal((await signIn('pat')).profile?.name, 'Pat Doe')
  assert.deepEqual(await signIn('zoe'), noAccount)
  assert.equal((await signIn('eve')).end, '/sign-in?error=oidc_unverified')

  await app.api('DELETE', `/members/${profile!.id}`)
  assert.deepEqual(await signIn('sam'), noAccount)
  const invited = await app.api('POST', '/invitations', { name: 'Sam', email: 'sam@corp.example', role: 'viewer' })
  assert.equal(invited.status, 201)
  assert.equal((await signIn('sam', invited.body.member.id)).profile?.role, 'viewer')
})

test('who was removed does not come in again by another email of theirs, unless they are invited', async () => {
  const { profile } = await signIn('ann')
  await app.api('DELETE', `/members/${profile!.id}`)
  people.ann.email = 'ann.other@corp.example'
  assert.deepEqual(await signIn('ann'), noAccount)
  const { body } = await app.api('POST', '/members', { name: 'Ann', email: 'ann.other@corp.example' })
  assert.equal((await signIn('ann', body.id)).profile?.id, body.id)
  assert.equal((await signIn('ann')).profile?.id, body.id)
})

test('who enters an address keeps its owner from no account, and loses it once the owner has proven it', async () => {
  const { body: squatter } = await app.api('POST', '/members', { name: 'Squatter' })
  const { key } = (await app.api('POST', '/keys', { name: 'k', user_id: squatter.id, scopes: ['profile:read'] })).body
  assert.ok(key)
  await app.services.accounts.members.changeOwn(
    {
      ...app.owner,
      user_id: squatter.id,
      kind: 'session',
      key_id: 'ses',
      role: 'member',
      scopes: [],
      tier: 'free',
      suspended: false,
    },
    { email: 'Kim@corp.example' },
  )
  const { body: foreign } = await app.other.api('POST', '/members', { name: 'Kim', email: 'kim@corp.example' })
  const chosen = await signIn('kim', null)
  assert.deepEqual([chosen.profile?.account.id, chosen.profile?.name], [app.owner.account_id, 'Kim Lee'])
  assert.equal((await app.api('GET', `/members/${squatter.id}`)).body.email, null)
  assert.equal((await app.other.api('GET', `/members/${foreign.id}`)).body.email, 'kim@corp.example')
  assert.equal((await signIn('kim')).profile?.id, chosen.profile?.id)
})

test('another owner can neither change the operator’s email nor do what the operator does', async () => {
  await app.api('PUT', `/members/${app.owner.user_id}`, { email: 'operator@example.com' })
  await app.api('POST', '/members', { name: 'Second', email: 'second@example.com', role: 'owner' })
  const second = newBrowser(app)
  await second.enter('second@example.com')
  const take = { email: 'sam@corp.example' }
  assert.deepEqual(codeOf(await second.send('PUT', `/members/${app.owner.user_id}`, take)), [
    ...[403, 'insufficient_permissions'],
  ])
  assert.equal((await second.send('PUT', `/members/${app.owner.user_id}`, { name: 'Op' })).status, 200)
  assert.deepEqual(codeOf(await second.send('GET', '/operator/accounts')), [403, 'insufficient_permissions'])
})

test('a provider that does not answer, or too many tries, are told on the sign-in page', async () => {
  const away = await startApp({
    TUNERY_OIDC_ISSUER: 'http://127.0.0.1:9/',
    TUNERY_OIDC_CLIENT_ID: 'a',
    TUNERY_OIDC_CLIENT_SECRET: 'b',
  })
  try {
    const begin = async () => (await fetch(`${away.url}/sign-in/oidc`, { redirect: 'manual' })).headers.get('location')
    assert.equal(await begin(), '/sign-in?error=oidc_unavailable')
    for (let count = 0; count < 30; count++) await fetch(`${away.url}/sign-in`)
    assert.equal(await begin(), '/sign-in?error=too_many_tries')
  } finally {
    await away.stop()
  }
})

test('settings that say nothing without a provider, or no domain, are refused at the start', async () => {
  const issuer = 'http://127.0.0.1:9/'
  for (const [settings, problem] of [
    [{ TUNERY_OIDC_SIGN_UP: 'example.com' }, /TUNERY_OIDC_ISSUER/],
    [{ TUNERY_OIDC_CLIENT_SECRET: 'x' }, /TUNERY_OIDC_ISSUER/],
    [{ TUNERY_OIDC_ISSUER: issuer }, /TUNERY_OIDC_CLIENT_SECRET/],
    [{ TUNERY_OIDC_SIGN_UP: '*' }, /neither off nor an email domain/],
    [{ TUNERY_OIDC_SIGN_UP: 'off,example.com' }, /off stands alone/],
    [{ TUNERY_OIDC_SIGN_UP_ROLE: 'owner' }, /TUNERY_OIDC_SIGN_UP_ROLE/],
  ] as const)
    await assert.rejects(async () => {
      const config = readConfig({ TUNERY_DATA_DIR: app.dataDir, TUNERY_LOG_LEVEL: 'silent', ...settings })
      await createServices(config, createLog(config), app.db)
    }, problem)
})
