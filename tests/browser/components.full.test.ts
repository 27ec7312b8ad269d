// The components of web/ui, under the page's policy: by keyboard, for screen readers, with much and with nothing.
import assert from 'node:assert/strict'
import { mkdtempSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import type {} from '@fastify/swagger'
import Fastify from 'fastify'
import { build } from 'vite'
import { root } from '../../lib/root.ts'
import { webRoutes } from '../../server/features/web/routes.ts'
import { type BrowserOnly, browserTest, phone, problemsOf, settled, startBrowser } from './support.ts'

const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-gallery-'))
const app = Fastify()
let browser: BrowserOnly
before(async () => {
  if (browserTest.skip) return
  process.env.TUNERY_WEB_OUT = folder
  await build({
    configFile: path.join(root, 'web/vite.config.ts'),
    root: path.join(root, 'tests/browser/gallery'),
    publicDir: false,
    logLevel: 'warn',
  })
  webRoutes(app, folder)
  await app.listen({ host: '127.0.0.1', port: 0 })
  browser = await startBrowser(() => app.listeningOrigin)
})
after(async () => {
  await browser?.stop()
  await app.close()
  rmSync(folder, { recursive: true, force: true })
})

async function gallery(options: Parameters<BrowserOnly['visit']>[0] = {}) {
  const visit = await browser.visit({ reducedMotion: true, ...options })
  await visit.page.goto('/')
  await settled(visit.page, { skeletons: true })
  return visit
}

test('axe finds nothing serious, light, dark and on a phone; the policy refuses nothing', browserTest, async () => {
  for (const options of [{ scheme: 'light' }, { scheme: 'dark' }, { scheme: 'light', size: phone }] as const) {
    const { page, complaints } = await gallery(options)
    assert.deepEqual(await problemsOf(page), [], JSON.stringify(options))
    // Once is enough for the rest: their colours are those of the others.
    for (const tab of options.scheme === 'dark' ? ['Code', 'Empty', 'Error'] : []) {
      await page.getByRole('tab', { name: tab }).click()
      assert.deepEqual(await problemsOf(page), [], `${tab} ${JSON.stringify(options)}`)
    }
    assert.ok((await page.evaluate(() => document.documentElement.scrollWidth - innerWidth)) <= 0, 'it fits its window')
    assert.deepEqual(complaints, [])
  }
})

test('what pops up is found by keyboard, has no axe problem, and gives the focus back', browserTest, async () => {
  const { page, complaints } = await gallery()
  const focused = () =>
    page.evaluate(
      () => document.activeElement?.textContent?.trim() || document.activeElement?.getAttribute('aria-label'),
    )
  for (const [name, role] of [
    ['Open dialog', 'dialog'],
    ['Delete', 'alertdialog'],
    ['More', 'menu'],
    ['What is LoRA?', 'dialog'],
  ] as const) {
    await page.getByRole('button', { name, exact: true }).first().focus()
    await page.keyboard.press('Enter')
    await page.getByRole(role).waitFor()
    assert.deepEqual(await problemsOf(page), [], name)
    await page.keyboard.press('Escape')
    await page.getByRole(role).waitFor({ state: 'detached' })
    assert.equal(await focused(), name)
  }
  assert.deepEqual(complaints, [])
})

test('select and combobox are chosen from by keyboard', browserTest, async () => {
  const { page } = await gallery()
  const select = page.getByRole('combobox', { name: /^Method/ })
  await select.focus()
  await page.keyboard.press('Enter')
  await page.getByRole('option', { name: /^QLoRA/ }).waitFor()
  assert.deepEqual(await problemsOf(page), [])
  await page.keyboard.press('ArrowDown')
  await page.keyboard.press('Enter')
  await page.waitForFunction(() => document.querySelector('[role="combobox"]')?.textContent?.includes('QLoRA'))
  const combobox = page.getByRole('combobox', { name: /^Model/ })
  await combobox.fill('model-42-')
  await page.getByRole('option', { name: 'owner/model-42-instruct' }).waitFor()
  await page.keyboard.press('ArrowDown')
  await page.keyboard.press('Enter')
  assert.equal(await combobox.inputValue(), 'owner/model-42-instruct')
})

test('a confirmed action that fails stays open and says why', browserTest, async () => {
  const { page } = await gallery()
  await page.getByRole('button', { name: 'Delete', exact: true }).click()
  await page.getByRole('button', { name: 'Delete dataset' }).click()
  await page.getByRole('alert').filter({ hasText: 'Cancel the job first' }).waitFor()
  assert.ok(await page.getByRole('alertdialog').isVisible())
})

test('a table of 2000 rows renders few, sorts, and is walked with arrows to its end', browserTest, async () => {
  const { page } = await gallery()
  const table = page.getByRole('table', { name: 'Rows' })
  const rendered = () => table.locator('tbody tr[data-row]').count()
  assert.ok((await rendered()) < 100, `${await rendered()} rows`)
  assert.equal(await table.getAttribute('aria-rowcount'), '2001')
  const first = () => table.locator('tbody tr[data-row="0"]').innerText()
  assert.match(await first(), /4,?99\d/)
  await table.getByRole('button', { name: 'Rows' }).click()
  await page.waitForFunction(() => document.querySelector('th[aria-sort="ascending"]'))
  assert.match(await first(), /\t?0\b/)
  await table.locator('tbody tr[data-row="0"] a').focus()
  await page.keyboard.press('ArrowDown')
  const at = () => page.evaluate(() => document.activeElement?.closest<HTMLElement>('[data-row]')?.dataset.row)
  await page.waitForFunction(() => document.activeElement?.closest<HTMLElement>('[data-row]')?.dataset.row === '1')
  await page.keyboard.press('End')
  await page.waitForFunction(() => document.activeElement?.closest<HTMLElement>('[data-row]')?.dataset.row === '1999')
  assert.equal(await at(), '1999')
})

test('a chart tells its values to those who cannot see it, by arrow keys and as a table', browserTest, async () => {
  const { page } = await gallery()
  const chart = page.getByRole('img', { name: /^Loss\. Train loss: from/ })
  assert.match((await chart.getAttribute('aria-label'))!, /Validation loss: from .* lowest .* at step \d+\./)
  await chart.focus()
  await page.keyboard.press('Home')
  await page.keyboard.press('ArrowRight')
  await page
    .getByRole('status')
    .filter({ hasText: /^Step 2: Train loss/ })
    .waitFor({ state: 'attached' })
  await page.getByText('Show as table').first().click()
  const values = page.getByRole('table', { name: 'Loss' })
  await values.waitFor()
  assert.ok((await values.getByRole('row').count()) > 40)
})

test('a toast is read out, and an error stays longer', browserTest, async () => {
  const { page } = await gallery()
  await page.getByRole('button', { name: 'More', exact: true }).click()
  await page.getByRole('menuitem', { name: 'Fail' }).click()
  await page.getByText('The disk is full. Make room.').first().waitFor()
  assert.deepEqual(await problemsOf(page), [])
})
