// The docs in a browser: found, read and run, signed in or not.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { browserService, browserTest, desktop, phone, problemsOf, settled } from './support.ts'

const { service } = browserService('docs')

test('a guide opens directly at its anchor; links between pages do not reload it', browserTest, async () => {
  const { page, complaints } = await service.visit({ signedIn: false })
  await page.goto('/docs/guides/operate#back-up-and-restore')
  const heading = page.getByRole('heading', { name: /^Back up and restore/ })
  await heading.waitFor()
  await page.waitForFunction(() => {
    const { top } = document.getElementById('back-up-and-restore')!.getBoundingClientRect()
    return top >= 0 && top < 200
  })
  await page.evaluate(() => Object.assign(window, { stays: true }))
  await page.getByRole('article').getByRole('link', { name: 'reliability' }).first().click()
  await page.getByRole('heading', { level: 1, name: 'Reliability' }).waitFor()
  assert.equal(new URL(page.url()).hash, '#deleting-on-a-full-disk')
  assert.equal(await page.evaluate(() => 'stays' in window), true)
  await page.goBack()
  await page.getByRole('heading', { level: 1, name: 'Operate' }).waitFor()
  await page.goto('/docs/no/such/page')
  await page.getByRole('heading', { level: 1, name: 'There is no such page' }).waitFor()
  assert.deepEqual(complaints, [])
})

test('code can be copied', browserTest, async () => {
  const { page } = await service.visit({ signedIn: false })
  await page.context().grantPermissions(['clipboard-read', 'clipboard-write'])
  await page.goto('/docs/guides/start')
  await settled(page)
  await page.getByRole('button', { name: 'Copy code' }).first().focus()
  await page.keyboard.press('Enter')
  await page.getByRole('button', { name: 'Copied' }).waitFor()
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), 'npm start\n')
})

test('the reference runs a request with the session, and asks before one that deletes', browserTest, async () => {
  const { page, complaints } = await service.visit()
  await page.goto('/docs/api#listDatasets')
  const entry = page.locator('#listDatasets')
  await entry.getByRole('button', { name: 'Run', exact: true }).click()
  await entry.getByText(/^200/).last().waitFor()
  await entry.getByText('"has_more": false').waitFor()
  await page.goto('/docs/api#deleteDataset')
  const deletes = page.locator('#deleteDataset')
  await deletes.getByRole('textbox', { name: 'dataset_id' }).fill('ds_nothing')
  assert.match(await deletes.locator('pre').first().innerText(), /-X DELETE/)
  await deletes.getByRole('button', { name: 'Run', exact: true }).click()
  const asked = page.getByRole('alertdialog')
  await asked.getByText('DELETE /v1/datasets/ds_nothing').waitFor()
  await asked.getByRole('button', { name: 'Run' }).click()
  await deletes.getByText('"dataset_not_found"').waitFor()
  // The browser itself reports an answer of 404.
  assert.deepEqual(
    complaints.filter((each) => !each.includes('404')),
    [],
  )
})

test('a pasted key runs requests without a session, and is kept nowhere', browserTest, async () => {
  const { page } = await service.visit({ signedIn: false })
  await page.goto('/docs/api#getProfile')
  const entry = page.locator('#getProfile')
  await entry.getByText('Sign in, or set a key').waitFor()
  assert.ok(await entry.getByRole('button', { name: 'Run', exact: true }).isDisabled())
  await page.getByRole('button', { name: 'Set a key' }).click()
  await page.getByLabel('Key').fill(service.key)
  await page.keyboard.press('Escape')
  await entry.getByRole('button', { name: 'Run', exact: true }).click()
  await entry.getByText('"role": "owner"').waitFor()
  const stored = await page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }, location.href]))
  assert.ok(!stored.includes(service.key))
  await page.reload()
  await entry.getByText('Sign in, or set a key').waitFor()
})

test('a stream of events is shown as it comes', browserTest, async () => {
  const { page } = await service.visit()
  await page.goto('/docs/api#chatCompletions')
  const entry = page.locator('#chatCompletions')
  const body = { model: 'test/tiny', stream: true, max_tokens: 8, messages: [{ role: 'user', content: 'Hi' }] }
  await entry.getByRole('textbox', { name: 'Body' }).fill(JSON.stringify(body))
  await entry.getByRole('button', { name: 'Run', exact: true }).click()
  await page.getByRole('alertdialog').getByRole('button', { name: 'Run' }).click()
  await entry.getByText('[DONE]').waitFor()
})

test('an operation unfolds its body to the last field, and its named parts have a page', browserTest, async () => {
  const { page } = await service.visit({ signedIn: false })
  await page.goto('/docs/api#createJob')
  const entry = page.locator('#createJob')
  await entry.getByText('Fields of config', { exact: true }).click()
  await entry.getByText('Fields of training_config', { exact: true }).click()
  await entry.getByText('learning_rate', { exact: true }).waitFor()
  await entry.getByRole('link', { name: 'JobConfigInput' }).click()
  await page.getByRole('heading', { name: 'JobConfigInput' }).waitFor()
  await page.getByText('evaluation_config', { exact: true }).waitFor()
  await page.goBack()
  await entry.waitFor()
})

test('axe finds nothing serious, dark and on a phone; no page is wider than its window', browserTest, async () => {
  for (const options of [
    { scheme: 'dark', size: desktop },
    { scheme: 'light', size: phone },
  ] as const) {
    const { page, complaints } = await service.visit({ ...options, signedIn: false, reducedMotion: true })
    for (const path of [
      '/docs/overview',
      '/docs/guides/receive-webhooks',
      '/docs/performance',
      '/docs/api#createJob',
    ]) {
      await page.goto(path)
      await settled(page)
      if (path.includes('#')) await page.getByRole('heading', { name: 'Run it' }).waitFor()
      assert.deepEqual(await problemsOf(page), [], `${path} ${options.scheme}`)
      const width = await page.evaluate(() => document.documentElement.scrollWidth)
      assert.ok(width <= options.size.width, `${path} is ${width} px wide at ${options.size.width}`)
    }
    // The look whether somebody is signed in: nobody is.
    assert.deepEqual(
      complaints.filter((each) => !each.includes('/v1/session')),
      [],
    )
    if (options.size !== phone) continue
    await page.getByRole('button', { name: 'Menu' }).click()
    await page.getByRole('dialog').getByRole('link', { name: 'Prepare data' }).click()
    await page.getByRole('heading', { level: 1, name: 'Prepare data' }).waitFor()
    await page.getByRole('dialog').waitFor({ state: 'detached' })
  }
})

test('the reference stays small: what is folded is not in the page', browserTest, async () => {
  const { page } = await service.visit({ signedIn: false })
  await page.goto('/docs/api')
  await page.getByRole('heading', { name: 'Webhooks', exact: true }).waitFor()
  const elements = await page.evaluate(() => document.querySelectorAll('*').length)
  assert.ok(elements < 3000, `${elements} elements`)
})
