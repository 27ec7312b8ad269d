// What the dashboard promises first, in a browser: fast, under its policy, readable, and careful with a key. Everything
// else about its pages is in the files beside this one, which `npm run test:full` runs.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { Tunery } from '../../sdk/index.ts'
import { allowed } from '../support/allowed-time.ts'
import { until } from '../support/client.ts'
import { type BrowserService, browserTest, phone, problemsOf, settled, startBrowserService } from './support.ts'

let service: BrowserService
before(async () => {
  if (!browserTest.skip) service = await startBrowserService('dashboard')
})
after(() => service?.stop())

test('the page is painted within a second, with no complaint of the browser', browserTest, async (t) => {
  const painted_ms: number[] = []
  // The first time warms service and browser up.
  for (let round = 0; round < 2; round++) {
    const { page, complaints } = await service.visit()
    await page.goto('/')
    await page.getByRole('heading', { level: 1, name: 'Home' }).waitFor()
    painted_ms.push(await page.evaluate(() => performance.getEntriesByName('first-contentful-paint')[0]!.startTime))
    await settled(page)
    assert.deepEqual(complaints, [])
    await page.context().close()
  }
  t.diagnostic(`${painted_ms.map(Math.round).join(', ')} ms`)
  assert.ok(Math.min(...painted_ms) < allowed(1000), `${painted_ms.join(', ')} ms`)
})

test('axe finds nothing serious on a form, dark, and on a phone', browserTest, async () => {
  const { page } = await service.visit({ scheme: 'dark', size: phone, reducedMotion: true })
  await page.goto('/jobs/new')
  await settled(page)
  assert.deepEqual(await problemsOf(page), [])
})

test(
  'a double click, Enter twice and a second form with the same content make one thing each',
  browserTest,
  async () => {
    const { page } = await service.visit()
    const tunery = new Tunery({ baseUrl: `${service.address}/v1`, apiKey: service.key, maxRetries: 0 })
    const countOf = async (name: string) =>
      (await tunery.keys.list({ limit: 100 })).items.filter((key) => key.name === name).length
    for (const how of ['double click', 'enter'] as const) {
      await page.goto('/settings/keys')
      await settled(page)
      await page.getByRole('button', { name: 'Create key' }).click()
      const form = page.getByRole('dialog', { name: 'Create API key' })
      const name = form.getByLabel('Name')
      await name.fill(how)
      if (how === 'enter') {
        await name.press('Enter')
        await name.press('Enter').catch(() => {})
      } else await form.getByRole('button', { name: 'Create key' }).dblclick()
      await page.getByRole('dialog', { name: 'Your new API key' }).waitFor()
      await settled(page)
      assert.equal(await countOf(how), 1, how)
    }
    // Two scripts on the page at once, as two events in one turn of its loop.
    await page.goto('/settings/keys')
    await settled(page)
    await page.getByRole('button', { name: 'Create key' }).click()
    const form = page.getByRole('dialog', { name: 'Create API key' })
    await form.getByLabel('Name').fill('twice at once')
    await form.getByRole('button', { name: 'Create key' }).evaluate((button: HTMLElement) => {
      button.click()
      button.click()
    })
    await page.getByRole('dialog', { name: 'Your new API key' }).waitFor()
    await settled(page)
    assert.equal(await countOf('twice at once'), 1)
  },
)

test('a key is shown once and never again, may what was chosen, and is refused once revoked', browserTest, async () => {
  const { page, complaints } = await service.visit()
  await page.goto('/settings/keys')
  await settled(page)
  await page.getByRole('button', { name: 'Create key' }).click()
  const form = page.getByRole('dialog', { name: 'Create API key' })
  assert.ok(await form.getByRole('button', { name: 'Create key' }).isDisabled(), 'a key has a name')
  await form.getByLabel('Name').fill('reports')
  await form.getByRole('combobox', { name: 'Permissions' }).click()
  await page.getByRole('option', { name: /^Read only/ }).click()
  await form.getByRole('button', { name: 'Create key' }).click()
  const key = await page.getByRole('dialog', { name: 'Your new API key' }).getByTestId('secret').innerText()

  const tunery = new Tunery({ baseUrl: `${service.address}/v1`, apiKey: key, maxRetries: 0 })
  assert.deepEqual((await tunery.datasets.list()).items, [])
  await assert.rejects(tunery.keys.create({ name: 'another' }), { status: 403 })

  await page.getByRole('button', { name: 'Done' }).click()
  await page.getByRole('dialog').waitFor({ state: 'detached' })
  const row = page.getByRole('table', { name: 'API keys' }).getByRole('row', { name: /reports/ })
  await row.waitFor()
  for (const look of ['at once', 'after a reload']) {
    if (look === 'after a reload') {
      await page.reload()
      await row.waitFor()
    }
    const kept = await page.evaluate(
      () => document.documentElement.outerHTML + JSON.stringify({ ...localStorage, ...sessionStorage }),
    )
    assert.ok(!kept.includes(key), look)
  }

  await row.getByRole('button', { name: 'Actions for reports' }).click()
  await page.getByRole('menuitem', { name: 'Revoke' }).click()
  await page.getByRole('alertdialog', { name: 'Revoke reports?' }).getByRole('button', { name: 'Revoke key' }).click()
  await row.waitFor({ state: 'detached' })
  await until('the key to be refused', () =>
    tunery.datasets.list().then(
      () => false,
      (error) => error.status === 401,
    ),
  )
  assert.deepEqual(complaints, [])
})

test('the search finds a page by the keyboard alone, and opens it at its heading', browserTest, async () => {
  const { page, complaints } = await service.visit({ signedIn: false })
  await page.goto('/docs/overview')
  await settled(page)
  await page.keyboard.press('/')
  await page.keyboard.type('limits idempotent')
  await page.getByRole('option', { selected: true }).waitFor()
  assert.deepEqual(await problemsOf(page), [])
  await page.keyboard.press('ArrowDown')
  await page.keyboard.press('ArrowUp')
  await page.keyboard.press('Enter')
  await page.getByRole('heading', { level: 1, name: 'Limits, usage and idempotent requests' }).waitFor()
  await page.getByRole('dialog').waitFor({ state: 'detached' })
  // An operation of the API, and nothing at all.
  await page.keyboard.press('/')
  await page.keyboard.type('createWebhook')
  await page.getByRole('option', { name: /\/webhooks/ }).waitFor()
  await page.getByRole('combobox').fill('xyzzyplugh')
  await page.getByText('Nothing has “xyzzyplugh”').waitFor()
  await page.keyboard.press('Escape')
  await page.getByRole('dialog').waitFor({ state: 'detached' })
  assert.deepEqual(complaints, [])
})
