// People who come from elsewhere: by the link of a shared model, and by an OpenID provider.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { Tunery } from '../../sdk/index.ts'
import { startOpenidProvider } from '../support/openid-provider.ts'
import { installColourModel } from '../support/trained.ts'
import { type BrowserService, browserTest, problemsOf, settled, startBrowserService } from './support.ts'

let service: BrowserService
let provider: Awaited<ReturnType<typeof startOpenidProvider>>
let tunery: Tunery
before(async () => {
  if (browserTest.skip) return
  provider = await startOpenidProvider({
    ada: { email: 'ada@example.com', email_verified: true },
    eve: { email: 'eve@example.com', email_verified: true },
  })
  service = await startBrowserService('guests', {
    TUNERY_SHARE_LINKS: 'on',
    TUNERY_OIDC_ISSUER: provider.issuer,
    TUNERY_OIDC_CLIENT_ID: provider.client_id,
    TUNERY_OIDC_CLIENT_SECRET: provider.client_secret,
  })
  provider.register(`${service.address}/v1/sign-in/oidc/callback`)
  tunery = service.tunery
})
after(async () => {
  await service?.stop()
  await provider?.stop()
})

test('a shared model is looked at and asked by who has the link, until it is withdrawn', browserTest, async () => {
  const model = await installColourModel({ dataDir: service.folder.dataDir })
  const owner = await service.visit()
  await owner.page.goto(`/models/${model}?tab=shares`)
  await settled(owner.page)
  await owner.page.getByRole('button', { name: 'Create link' }).click()
  await owner.page.getByRole('dialog').getByRole('button', { name: 'Create link' }).click()
  const link = await owner.page.getByTestId('secret').innerText()

  const { page, complaints } = await service.visit({ signedIn: false })
  await page.goto(link)
  await page.getByRole('heading', { level: 1 }).waitFor()
  await page.getByText(/questions left today/).waitFor()
  assert.deepEqual(await problemsOf(page), [])
  await page.getByLabel('Your question').fill('code of red?')
  await page.keyboard.press('Enter')
  await page.getByRole('button', { name: 'Send' }).waitFor()
  const [asked, answered] = await page.getByRole('main').locator('[aria-live] > div').allInnerTexts()
  assert.equal(asked, 'code of red?')
  assert.ok(answered && answered !== '…')
  const seen = await page.evaluate(() => document.documentElement.outerHTML)
  assert.ok(!seen.includes(model), 'no id of the account')

  const [share] = (await tunery.models.shares.list(model)).items
  await tunery.models.shares.delete(model, share!.id)
  await page.reload()
  await page.getByText(/link/i).first().waitFor()
  assert.equal(await page.getByLabel('Your question').count(), 0)
  // The browser itself reports the refusal.
  assert.deepEqual(
    complaints.filter((complaint) => !complaint.includes('400')),
    [],
  )
})

test('a member connects their provider, and signs in with it from then on', browserTest, async () => {
  const { page, complaints } = await service.visit()
  await page.goto('/settings/profile')
  await page.getByLabel('Email').fill('ada@example.com')
  await page.getByRole('button', { name: 'Save' }).first().click()
  await page.getByText('Saved').first().waitFor()
  await page.getByRole('link', { name: /^Connect / }).click()
  await page.waitForURL(/\/settings/)
  await settled(page)
  assert.deepEqual(complaints, [])

  const { page: later } = await service.visit({ signedIn: false })
  await later.goto('/jobs')
  await later.getByRole('link', { name: /^Sign in with / }).click()
  await later.getByRole('heading', { level: 1, name: 'Jobs' }).waitFor()
  assert.equal(
    (await later.evaluate(() => fetch('/v1/session').then((answer) => answer.json()))).profile.email,
    'ada@example.com',
  )
})

test(
  'whose email was entered in several accounts chooses one; the connection is listed and removed',
  browserTest,
  async () => {
    const other = new Tunery({
      baseUrl: `${service.address}/v1`,
      apiKey: service.folder.tunery('accounts', 'create', '--name', 'Trap').key!,
    })
    const email = 'eve@example.com'
    await other.members.add({ name: 'Not Eve', email })
    const mine = await tunery.members.add({ name: 'Eve', email, role: 'viewer' })
    provider.signInAs('eve')
    const { page, complaints } = await service.visit({ signedIn: false })
    await page.goto('/sign-in')
    await page.getByRole('link', { name: /^Sign in with / }).click()
    await page.getByRole('heading', { level: 1, name: 'Choose an account' }).waitFor()
    await page.getByRole('button', { name: 'Trap, as Not Eve (member)' }).waitFor()
    assert.deepEqual(await problemsOf(page), [])
    await page.getByRole('button', { name: /, as Eve \(viewer\)$/ }).click()
    await page.waitForURL((url) => url.pathname !== '/choose-account')
    await settled(page)
    const profile = () => page.evaluate(() => fetch('/v1/session').then((answer) => answer.json()))
    assert.equal((await profile()).profile.id, mine.id)
    // Before that nobody was signed in, which the browser itself reports.
    assert.deepEqual(
      complaints.filter((complaint) => !complaint.includes('401')),
      [],
    )

    const owner = await service.visit()
    await owner.page.goto('/settings/members')
    await settled(owner.page)
    await owner.page.getByRole('button', { name: /sign-in of Eve/i }).click()
    const dialog = owner.page.getByRole('dialog')
    await dialog.getByRole('cell', { name: email, exact: true }).waitFor()
    await dialog.getByRole('button', { name: `Remove the connection of ${email}` }).click()
    await owner.page.getByRole('button', { name: 'Remove connection' }).click()
    await dialog.getByText('Not connected').waitFor()
    // Nothing of hers is left but the choice.
    assert.equal((await profile()).error.code, 'session_ended')
    await page.goto('/sign-in')
    await page.getByRole('link', { name: /^Sign in with / }).click()
    await page.getByRole('heading', { level: 1, name: 'Choose an account' }).waitFor()
  },
)
