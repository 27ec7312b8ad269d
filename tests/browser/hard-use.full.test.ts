// The dashboard in hard use: forms that are left, two tabs, a slow and a lost network, a session that ends elsewhere,
// the keyboard alone, and windows as narrow as a large zoom makes them.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Page } from 'playwright-core'
import { colourRows } from '../support/client.ts'
import { tiny } from '../support/tiny.ts'
import { browserService, browserTest, heading, inNumbers, open, otherMachine } from './support.ts'

const { service, tunery } = browserService('hard-use')

const keysNamed = async (name: string) =>
  (await tunery.keys.list({ limit: 100 })).items.filter((key) => key.name === name)

/** The form of a new key, with a name in it. */
async function beginKey(page: Page, name: string) {
  await page.getByRole('button', { name: 'Create key' }).click()
  const form = page.getByRole('dialog', { name: 'Create API key' })
  await form.getByLabel('Name').fill(name)
  return form
}

test('what was typed into a dialog is not lost by a click beside it, Escape or Back', browserTest, async () => {
  const { page, complaints } = await service.visit()
  await open(page, '/')
  await page.getByRole('link', { name: 'Settings' }).click()
  await page.getByRole('tab', { name: 'API keys' }).click()
  const form = await beginKey(page, 'half typed')
  const question = page.getByRole('alertdialog', { name: 'Discard what you entered?' })
  const keeps = async () => {
    await question.getByRole('button', { name: 'Keep editing' }).click()
    await question.waitFor({ state: 'detached' })
    assert.equal(await form.getByLabel('Name').inputValue(), 'half typed')
  }
  await page.mouse.click(5, 5)
  assert.equal(await form.getByLabel('Name').inputValue(), 'half typed')
  await page.keyboard.press('Escape')
  await keeps()
  await page.evaluate(() => history.back())
  await keeps()
  assert.match(page.url(), /\/settings\/keys$/)
  await page.keyboard.press('Escape')
  await question.getByRole('button', { name: 'Discard' }).click()
  await form.waitFor({ state: 'detached' })
  assert.match(page.url(), /\/settings\/keys$/)

  // Nothing was typed, or it was sent: nothing is asked.
  await page.getByRole('button', { name: 'Create key' }).click()
  await form.waitFor()
  await page.keyboard.press('Escape')
  await form.waitFor({ state: 'detached' })
  await beginKey(page, 'sent')
  await form.getByRole('button', { name: 'Create key' }).click()
  await page.getByRole('button', { name: 'Done' }).click()
  await page.getByRole('link', { name: 'Jobs', exact: true }).click()
  await heading(page, 'Jobs')
  assert.deepEqual(complaints, [])

  // It was sent and refused: it is asked again.
  await open(page, '/settings/webhooks')
  await page.getByRole('button', { name: 'Add webhook' }).click()
  const webhook = page.getByRole('dialog', { name: 'Add webhook' })
  await webhook.getByLabel('Endpoint URL').fill('http://127.0.0.1:1/hook')
  await webhook.getByRole('button', { name: 'Add webhook' }).click()
  await webhook.getByText('TUNERY_WEBHOOK_ALLOW').waitFor()
  await page.mouse.click(5, 5)
  await page.keyboard.press('Escape')
  await question.getByRole('button', { name: 'Keep editing' }).click()
  await question.waitFor({ state: 'detached' })
  assert.equal(await webhook.getByLabel('Endpoint URL').inputValue(), 'http://127.0.0.1:1/hook')
  await page.context().close()
})

test('a secret is shown until its dialog is closed by a button', browserTest, async () => {
  const { page } = await service.visit()
  await open(page, '/settings/keys')
  await (await beginKey(page, 'kept')).getByRole('button', { name: 'Create key' }).click()
  const secret = page.getByRole('dialog', { name: 'Your new API key' })
  await secret.waitFor()
  await page.mouse.click(5, 5)
  await page.keyboard.press('Escape')
  await page.keyboard.press('Control+k')
  assert.ok(await secret.getByTestId('secret').isVisible())
  await secret.getByRole('button', { name: 'Done' }).click()
  await secret.waitFor({ state: 'detached' })
  await page.context().close()
})

test('over http from another machine the dashboard works', browserTest, async () => {
  const address = service.address.replace('127.0.0.1', otherMachine)
  const { page, complaints } = await service.visit({ signedIn: false, address })
  const { link } = service.folder.tunery('sign-in-link')
  await page.goto(link!.replace('localhost', otherMachine))
  await heading(page, 'Welcome to Tunery')
  // Until then nobody was signed in, which the browser itself reports.
  complaints.length = 0
  assert.equal(await page.evaluate(() => isSecureContext), false)
  await open(page, '/datasets')
  await page.getByRole('button', { name: 'Paste' }).click()
  await page.getByLabel('Rows').fill(colourRows(4))
  await page.getByRole('button', { name: 'Add the rows' }).click()
  await heading(page, 'Pasted rows')
  await open(page, '/playground')
  await page.getByLabel('Your question').fill('code of red?')
  await page.getByRole('button', { name: 'Send' }).click()
  await page.getByText(/^\d+ in, \d+ out$/).waitFor()
  assert.deepEqual(complaints, [])
  await page.context().close()
})

test('a draft of a job and a question are there after Back and Forward', browserTest, async () => {
  const { page } = await service.visit()
  await open(page, '/jobs/new')
  await page.getByRole('textbox', { name: /^Name/ }).fill('drafted')
  await page.getByRole('link', { name: 'Playground', exact: true }).click()
  await heading(page, 'Playground')
  await page.getByLabel('Your question').fill('half a question')
  await page.goBack()
  await heading(page, 'New job')
  assert.equal(await page.getByRole('textbox', { name: /^Name/ }).inputValue(), 'drafted')
  await page.goForward()
  await heading(page, 'Playground')
  assert.equal(await page.getByLabel('Your question').inputValue(), 'half a question')
  await page.context().close()
})

test('a click that follows typing leads to its page, though that one loads slowly', browserTest, async () => {
  const { page } = await service.visit()
  await page.clock.install()
  await open(page, '/datasets')
  let release = () => {}
  const held = new Promise<void>((resolve) => {
    release = resolve
  })
  await page.route('**/assets/**', async (route) => {
    await held
    await route.continue()
  })
  await page.getByRole('searchbox', { name: 'Search by name' }).fill('colours')
  await page.getByRole('link', { name: 'Evaluations', exact: true }).click()
  await page.clock.runFor(1000)
  release()
  await heading(page, 'Evaluations')
  assert.match(page.url(), /\/evaluations$/)
  await page.context().close()
})

test('of two tabs, one says what the other has deleted or revoked', browserTest, async () => {
  const dataset = await tunery.datasets.upload(colourRows(8), { name: 'of two tabs' })
  await tunery.keys.create({ name: 'of two tabs' })
  const { page: first } = await service.visit()
  const second = await first.context().newPage()
  await open(first, `/datasets/${dataset.id}`)
  await open(second, '/settings/keys')
  await tunery.datasets.delete(dataset.id)
  await first.getByRole('button', { name: 'More actions' }).click()
  await first.getByRole('menuitem', { name: 'Delete dataset' }).click()
  await first.getByRole('button', { name: 'Delete dataset' }).click()
  await first
    .getByRole('alertdialog')
    .getByText(/no dataset|not found/i)
    .waitFor()
  for (const [key] of [await keysNamed('of two tabs')]) await tunery.keys.revoke(key!.id)
  await second.getByRole('button', { name: 'Actions for of two tabs' }).click()
  await second.getByRole('menuitem', { name: 'Revoke' }).click()
  await second.getByRole('button', { name: 'Revoke key' }).click()
  await second
    .getByRole('alertdialog')
    .getByText(/no .*key|not found|revoked/i)
    .waitFor()
  await first.context().close()
})

test('on a slow network a page says that it loads, and what is sent twice is made once', browserTest, async () => {
  const { page } = await service.visit()
  await open(page, '/settings/keys')
  const network = await page.context().newCDPSession(page)
  const slow = { offline: false, latency: 1500, downloadThroughput: 50_000, uploadThroughput: 50_000 }
  await network.send('Network.emulateNetworkConditions', slow)
  await page.getByRole('link', { name: 'Deployments', exact: true }).click()
  await page.locator('[data-skeleton]').first().waitFor()
  await page.getByText('No deployments yet').waitFor()
  await page.goBack()
  const form = await beginKey(page, 'slow')
  const button = form.getByRole('button', { name: 'Create key' })
  await button.click()
  await page.waitForFunction(() => document.querySelector('[role=dialog] button[aria-busy=true]'))
  await button.evaluate((element: HTMLElement) => element.click())
  await form.getByLabel('Name').press('Enter')
  await page.getByRole('dialog', { name: 'Your new API key' }).waitFor()
  assert.equal((await keysNamed('slow')).length, 1)
  await page.context().close()
})

test('a form that was sent offline says so, keeps what was typed, and is sent again', browserTest, async () => {
  const { page } = await service.visit()
  await open(page, '/settings/keys')
  const form = await beginKey(page, 'offline')
  await page.context().setOffline(true)
  await form.getByRole('button', { name: 'Create key' }).click()
  await form.getByRole('alert').waitFor()
  await page.getByText('The service does not answer').waitFor()
  await page.context().setOffline(false)
  await page.getByText('The service does not answer').waitFor({ state: 'detached' })
  assert.equal(await form.getByLabel('Name').inputValue(), 'offline')
  await form.getByRole('button', { name: 'Create key' }).click()
  await page.getByRole('dialog', { name: 'Your new API key' }).waitFor()
  assert.equal((await keysNamed('offline')).length, 1)

  // An answer that broke off is asked for again.
  await open(page, `/playground?models=${tiny}`)
  await page.context().setOffline(true)
  await page.getByLabel('Your question').fill('code of red?')
  await page.getByRole('button', { name: 'Send' }).click()
  const answer = page.getByRole('article', { name: 'Answer of model A' })
  await answer.getByRole('alert').waitFor()
  await page.context().setOffline(false)
  await page.getByText('The service does not answer').waitFor({ state: 'detached' })
  await answer.getByRole('button', { name: 'Regenerate' }).click()
  await answer.getByText(/^\d+ in, \d+ out$/).waitFor()
  await page.context().close()
})

test('a session that ends elsewhere leads to the sign-in, and its draft is there afterwards', browserTest, async () => {
  const signIn = async (page: Page) => {
    const { link } = service.folder.tunery('sign-in-link')
    await page.goto(inNumbers(link!))
    await heading(page, 'Welcome to Tunery')
  }
  const { page } = await service.visit({ signedIn: false })
  await signIn(page)
  await open(page, '/jobs/new')
  await page.getByRole('textbox', { name: /^Name/ }).fill('of another session')
  // A dialog with a half-typed form does not hold the way to the sign-in.
  await page.getByRole('link', { name: 'Settings' }).click()
  await page.getByRole('tab', { name: 'API keys' }).click()
  const form = await beginKey(page, 'lost')
  const session = await page.evaluate(() => fetch('/v1/session').then((answer) => answer.json()))
  assert.equal(
    await page.evaluate(
      (token) => fetch('/v1/session', { method: 'DELETE', headers: { 'x-csrf-token': token } }).then((r) => r.ok),
      session.csrf_token,
    ),
    true,
  )
  await form.getByRole('button', { name: 'Create key' }).click()
  await heading(page, 'Sign in')
  assert.match(page.url(), /next=%2Fsettings%2Fkeys/)
  await signIn(page)
  await open(page, '/jobs/new')
  assert.equal(await page.getByRole('textbox', { name: /^Name/ }).inputValue(), 'of another session')
  await page.context().close()
})

test('the search leads anywhere by the keyboard alone, and a key is made without a mouse', browserTest, async () => {
  await tunery.datasets.upload(colourRows(8), { name: 'found by its <b>name</b>' })
  const { page, complaints } = await service.visit()
  await open(page, '/')
  const search = async (text: string, option: string | RegExp) => {
    await page.keyboard.press('Control+k')
    const field = page.getByRole('combobox', { name: 'Search' })
    await field.waitFor()
    await page.keyboard.type(text)
    await page.getByRole('option', { name: option, selected: true }).waitFor()
    await page.keyboard.press('Enter')
    await field.waitFor({ state: 'detached' })
  }
  await search('its <b>', /found by its <b>name<\/b>.*Dataset/)
  await heading(page, 'found by its <b>name</b>')
  await search(tiny, new RegExp(`${tiny}.*Base model`))
  await heading(page, tiny)
  await page.keyboard.press('Control+k')
  await page.keyboard.type('nothing has this name')
  await page.getByText('Nothing is called “nothing has this name”.').waitFor()
  await page.keyboard.press('Escape')
  await page.getByRole('combobox', { name: 'Search' }).waitFor({ state: 'detached' })
  await search('api keys', /API keys/)
  await heading(page, 'Settings')
  const focused = () => page.evaluate(() => document.activeElement?.textContent ?? '')
  for (let presses = 0; presses < 60 && !(await focused()).startsWith('Create key'); presses++)
    await page.keyboard.press('Tab')
  await page.keyboard.press('Enter')
  await page.getByRole('dialog', { name: 'Create API key' }).waitFor()
  await page.waitForFunction(() => document.activeElement?.tagName === 'INPUT')
  await page.keyboard.type('by keyboard')
  await page.keyboard.press('Enter')
  await page.getByRole('dialog', { name: 'Your new API key' }).waitFor()
  assert.equal((await keysNamed('by keyboard')).length, 1)
  assert.deepEqual(complaints, [])
  await page.context().close()
})

test('at 320 px and at twice the size no page is wider than its window, and dialogs keep their buttons', {
  ...browserTest,
}, async () => {
  // 200 % of a window of 1280 by 800.
  for (const size of [
    { width: 320, height: 640 },
    { width: 640, height: 400 },
  ]) {
    const { page } = await service.visit({ size })
    for (const address of ['/', '/datasets', '/jobs', '/jobs/new', '/playground', '/models', '/settings/usage']) {
      await open(page, address)
      const wide = await page.evaluate(() => document.documentElement.scrollWidth)
      assert.ok(wide <= size.width, `${address} is ${wide} px wide in ${size.width}`)
    }
    await open(page, '/settings/keys')
    const form = await beginKey(page, 'zoomed')
    await form.getByRole('button', { name: 'Create key' }).scrollIntoViewIfNeeded()
    assert.ok(await form.getByRole('button', { name: 'Create key' }).isVisible())
    const box = (await form.boundingBox())!
    assert.ok(box.x >= 0 && box.y >= 0 && box.y + box.height <= size.height, JSON.stringify(box))
    await page.context().close()
  }
})
