// What the dashboard promises first, in a browser: an answer after the sign-in, and a job that is watched live. All
// else about its pages runs in `npm run test:full`, as do the files beside this one.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Tunery } from '../../sdk/index.ts'
import { allowed } from '../support/allowed-time.ts'
import { colourRows, until } from '../support/client.ts'
import { full } from '../support/full.ts'
import { tiny } from '../support/tiny.ts'
import { browserService, browserTest, choose, patiently, phone, problemsOf, settled } from './support.ts'

const { service } = browserService('dashboard')

const browserFull = browserTest.skip ? browserTest : full
const tuneryOf = (apiKey: string) => new Tunery({ baseUrl: `${service.address}/v1`, apiKey, maxRetries: 0 })

test('a password signs in, and the first question is answered', browserTest, async () => {
  const email = 'ada@example.com'
  const password = 'a sentence that is long enough'
  const { page: welcome } = await service.visit()
  await welcome.goto('/welcome')
  await welcome.getByLabel('Name').fill('Ada Lovelace')
  await welcome.getByLabel('Email').fill(email)
  await welcome.getByLabel('Password', { exact: true }).fill(password)
  await welcome.getByRole('button', { name: 'Set password' }).click()
  await welcome.getByRole('heading', { level: 1, name: 'Home' }).waitFor()
  await welcome.context().close()

  const { page, complaints } = await service.visit({ signedIn: false })
  await page.goto('/playground')
  await page.getByLabel('Email').fill(email)
  await page.getByLabel('Password').fill(password)
  // Until then nobody was signed in, which the browser itself reports.
  complaints.length = 0
  await page.keyboard.press('Enter')
  await page.getByRole('heading', { level: 1, name: 'Playground' }).waitFor()
  await page.getByRole('textbox', { name: 'Max tokens' }).fill('12')
  await page.getByLabel('Your question').fill('code of red?')
  // The list of models may come later than the page.
  await page.getByRole('button', { name: 'Send', disabled: false }).waitFor(patiently)
  await page.keyboard.press('Enter')
  const answer = page.getByRole('article', { name: 'Answer of model A' })
  await answer.getByText(/^\d+ in, \d+ out$/).waitFor()
  assert.deepEqual(complaints, [])
  await page.context().close()
})

test('a job is watched live until its model is there', browserTest, async () => {
  const tunery = tuneryOf(service.key)
  const dataset = await tunery.datasets.upload(colourRows(64), { name: 'colours' })
  const job = await tunery.jobs.create({
    model_id: tiny,
    dataset_id: dataset.id,
    name: 'colours',
    config: { training_config: { epochs: 20, batch_size: 4 }, evaluation_config: { validation_split: 0.2 } },
  })
  const { page, complaints } = await service.visit()
  await page.goto(`/jobs/${job.id}`)
  await page.getByText('live', { exact: true }).waitFor(patiently)
  const step = page.locator('dl div', { hasText: /^Step/ }).locator('dd').first()
  const stepOf = async () => Number((await step.innerText()).replace(/\D/g, ''))
  await step.waitFor(patiently)
  const seen = await stepOf()
  await until('a later step', async () => (await stepOf()) > seen)
  await page.getByRole('heading', { name: 'Trained model' }).waitFor(patiently)
  await page.getByRole('img', { name: /^Loss\. Training loss.* Validation loss: from/ }).waitFor()
  const { metrics, model } = await tunery.jobs.get(job.id)
  assert.equal(await stepOf(), metrics.step)
  await page.getByRole('link', { name: (await tunery.models.get(model!)).name, exact: true }).waitFor()
  assert.deepEqual(complaints, [])
  await page.context().close()
})

test('the page is painted within a second, with no complaint of the browser', browserFull, async (t) => {
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

test('axe finds nothing serious on a form, dark, and on a phone', browserFull, async () => {
  const { page } = await service.visit({ scheme: 'dark', size: phone, reducedMotion: true })
  await page.goto('/jobs/new')
  await settled(page)
  assert.deepEqual(await problemsOf(page), [])
})

test(
  'a double click, Enter twice and a second form with the same content make one thing each',
  browserFull,
  async () => {
    const { page } = await service.visit()
    const tunery = tuneryOf(service.key)
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
        // Keys of the page: the field may be gone at the second.
        await page.keyboard.press('Enter')
        await page.keyboard.press('Enter')
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

test('a key is shown once and never again, may what was chosen, and is refused once revoked', browserFull, async () => {
  const { page, complaints } = await service.visit()
  await page.goto('/settings/keys')
  await settled(page)
  await page.getByRole('button', { name: 'Create key' }).click()
  const form = page.getByRole('dialog', { name: 'Create API key' })
  assert.ok(await form.getByRole('button', { name: 'Create key' }).isDisabled(), 'a key has a name')
  await form.getByLabel('Name').fill('reports')
  await choose(form, 'Permissions', /^Read only/)
  await form.getByRole('button', { name: 'Create key' }).click()
  const key = await page.getByRole('dialog', { name: 'Your new API key' }).getByTestId('secret').innerText()

  const tunery = tuneryOf(key)
  await tunery.datasets.list()
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

test('the search finds a page by the keyboard alone, and opens it at its heading', browserFull, async () => {
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
