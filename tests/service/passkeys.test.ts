// What a passkey must prove: its own challenge, in time, once, at this address, by its user, and by no copy of it.
import assert from 'node:assert/strict'
import { before, beforeEach, test } from 'node:test'
import { createAuthenticator } from '../support/authenticator.ts'
import { codeOf, newBrowser } from '../support/browser.ts'
import { appOfTests } from '../support/service.ts'

const origin = 'https://tunery.example'
const app = appOfTests({ TUNERY_PUBLIC_URL: origin, TUNERY_TRUSTED_PROXIES: '127.0.0.1' })
before(async () => {
  await app.started
  await app.api('POST', '/members', { name: 'Ann', email: 'ann@example.com' })
  await app.api('POST', '/members', { name: 'Bob', email: 'bob@example.com' })
})

/** Each test comes from another address. */
let address = 0
beforeEach(() => void address++)
const browser = () => newBrowser(app, { 'x-forwarded-for': `192.0.2.${address}` })
type Page = ReturnType<typeof browser>
const refused = [400, 'passkey_refused']

async function enter(email: string): Promise<Page> {
  const page = browser()
  await page.enter(email)
  return page
}
const optionsOf = async (page: Page) => (await page.send('POST', '/user/passkeys/options', {})).body
const add = async (page: Page, response: object) => await page.send('POST', '/user/passkeys', { name: 'key', response })
const challenge = async () => (await browser().send('POST', '/sign-in/passkey/options')).body
const signIn = (response: object) => browser().send('POST', '/sign-in/passkey', { response })
const expireChallenges = () =>
  app.db.transaction().execute((trx) =>
    trx
      .updateTable('sign_in_tokens')
      .set({ expires_at: Date.now() - 1 })
      .where('kind', '=', 'challenge')
      .execute(),
  )

test('the options name the address that people open, and the passkeys that a member has already', async () => {
  const ann = await enter('ann@example.com')
  const options = await optionsOf(ann)
  assert.deepEqual([options.rp.id, options.user.name], ['tunery.example', 'ann@example.com'])
  assert.equal((await challenge()).rpId, 'tunery.example')
  const device = createAuthenticator(origin)
  const added = await add(ann, device.create(options))
  assert.equal(added.status, 201, JSON.stringify(added.body))
  const { excludeCredentials } = await optionsOf(ann)
  assert.equal(excludeCredentials.length, 1)
  const { items } = (await ann.send('GET', '/user/passkeys')).body
  assert.deepEqual([items[0].name, items[0].last_used_at], ['key', null])
  assert.equal((await signIn(device.get(await challenge()))).status, 200)
  assert.notEqual((await ann.send('GET', '/user/passkeys')).body.items[0].last_used_at, null)
})

test('a challenge counts once, for five minutes, and for whom and what it was made', async () => {
  const [ann, bob] = [await enter('ann@example.com'), await enter('bob@example.com')]
  const device = createAuthenticator(origin)
  assert.deepEqual(codeOf(await add(bob, device.create(await optionsOf(ann)))), refused)
  assert.deepEqual(codeOf(await add(bob, device.create(await challenge()))), refused)
  const late = await optionsOf(bob)
  await expireChallenges()
  assert.deepEqual(codeOf(await add(bob, device.create(late))), refused)
  assert.deepEqual(codeOf(await add(bob, device.create({ challenge: 'bWluZQ' }))), refused)
  const created = device.create(await optionsOf(bob))
  const both = await Promise.all([add(bob, created), add(bob, created)])
  assert.deepEqual(both.map(({ status }) => status).sort(), [201, 400])

  assert.deepEqual(codeOf(await signIn(device.get(await optionsOf(bob)))), refused)
  const stale = await challenge()
  await expireChallenges()
  assert.deepEqual(codeOf(await signIn(device.get(stale))), refused)
  const signed = device.get(await challenge())
  const twice = await Promise.all([signIn(signed), signIn(signed)])
  assert.deepEqual(twice.map(({ status }) => status).sort(), [200, 400])
})

test('another address, a user who was not verified, a copied key and a changed answer are refused', async () => {
  const bob = await enter('bob@example.com')
  for (const other of [createAuthenticator('https://tunery.example.evil.test'), createAuthenticator(origin, 0)])
    assert.deepEqual(codeOf(await add(bob, other.create(await optionsOf(bob)))), refused)

  const device = createAuthenticator(origin)
  assert.equal((await add(bob, device.create(await optionsOf(bob)))).status, 201)
  const ann = await enter('ann@example.com')
  assert.deepEqual(codeOf(await add(ann, device.create(await optionsOf(ann)))), refused, 'registered already')
  assert.equal((await signIn(device.get(await challenge()))).status, 200)
  const signed = device.get(await challenge())
  const changed = { ...signed, response: { ...signed.response, signature: signed.response.signature.slice(0, -8) } }
  assert.deepEqual(codeOf(await signIn(changed)), refused)
  device.rewind()
  assert.deepEqual(codeOf(await signIn(device.get(await challenge()))), refused, 'a copy counts from where it was made')
  for (const odd of [{ id: 'x' }, { id: signed.id }, { ...signed, response: 7 }, { ...signed, rawId: {} }])
    assert.deepEqual(codeOf(await signIn(odd)), refused)
})

test('a passkey belongs to its member: others neither see nor remove it; a removed member has none', async () => {
  const added = await app.api('POST', '/members', { name: 'Cleo', email: 'cleo@example.com' })
  const [cleo, ann] = [await enter('cleo@example.com'), await enter('ann@example.com')]
  const device = createAuthenticator(origin)
  const { id } = (await add(cleo, device.create(await optionsOf(cleo)))).body
  assert.deepEqual(codeOf(await ann.send('DELETE', `/user/passkeys/${id}`)), [404, 'passkey_not_found'])
  const { items } = (await ann.send('GET', '/user/passkeys')).body
  assert.ok(!items.some((item: { id: string }) => item.id === id))
  await app.api('DELETE', `/members/${added.body.id}`)
  assert.deepEqual(codeOf(await signIn(device.get(await challenge()))), refused)
})
