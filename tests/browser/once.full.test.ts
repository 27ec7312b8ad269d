// Everything that the dashboard makes is made once: by a double click, by another click and Enter while the first
// request runs, and by a form that is sent again after a reload.
import assert from 'node:assert/strict'
import { createWriteStream, mkdtempSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { finished } from 'node:stream/promises'
import { after, before, test } from 'node:test'
import type { Locator, Page } from 'playwright-core'
import { ZipFile } from 'yazl'
import type { Tunery } from '../../sdk/index.ts'
import { colourRows, until } from '../support/client.ts'
import { tiny } from '../support/tiny.ts'
import { installColourModel } from '../support/trained.ts'
import { type BrowserService, browserTest, choose, settled, startBrowserService } from './support.ts'

let service: BrowserService
let tunery: Tunery
let model: string
let colours: string
let broken: string
const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-once-'))
const adapter = path.join(folder, 'adapter.zip')
before(async () => {
  if (browserTest.skip) return
  service = await startBrowserService('once', { TUNERY_SHARE_LINKS: 'on' })
  tunery = service.tunery
  model = await installColourModel({ dataDir: service.folder.dataDir })
  const zip = new ZipFile()
  for (const file of ['adapter_config.json', 'adapter_model.safetensors'])
    zip.addFile(path.join(service.folder.dataDir, 'models', model, 'adapter', file), file)
  zip.end()
  await finished(zip.outputStream.pipe(createWriteStream(adapter)))
  const ready = async (rows: string, name: string) => {
    const { id } = await tunery.datasets.upload(rows, { name })
    await until(`the rows of ${name}`, async () => (await tunery.datasets.get(id)).status === 'ready')
    return id
  }
  colours = await ready(colourRows(16), 'colours')
  broken = await ready(`${colourRows(4)}\n{"messages":[{"role":"user","content":"no answer"}]}`, 'broken')
})
after(async () => {
  await service?.stop()
  rmSync(folder, { recursive: true })
})

const click = (page: Page, name: string) => page.getByRole('button', { name }).first().click()
interface Making {
  at: () => string
  /** Fills the form; returns the button that sends it. */
  fill: (page: Page, form: Locator, name: string) => Promise<Locator>
  count: () => Promise<number>
}
const lengthOf = async (list: PromiseLike<{ items: unknown[] }>) => (await list).items.length
const all = { limit: 100 }

/** A form in a dialog that a button of the page opens. */
const inDialog =
  (opener: string, sender: string, fill: (form: Locator, name: string) => Promise<unknown>): Making['fill'] =>
  async (page, form, name) => {
    if (opener) await click(page, opener)
    await fill(form, name)
    return form.getByRole('button', { name: sender, exact: true })
  }
const named = (form: Locator, name: string) => form.getByLabel('Name').fill(name)
const datasets = () => lengthOf(tunery.datasets.list(all))
const deployments = () => lengthOf(tunery.deployments.list(all))

const makings: Record<string, Making> = {
  'an API key': {
    at: () => '/settings/keys',
    fill: inDialog('Create key', 'Create key', named),
    count: () => lengthOf(tunery.keys.list(all)),
  },
  'a webhook': {
    at: () => '/settings/webhooks',
    fill: inDialog('Add webhook', 'Add webhook', (form, name) =>
      form.getByLabel('Endpoint URL').fill(`https://example.com/${encodeURIComponent(name)}`),
    ),
    count: () => lengthOf(tunery.webhooks.list(all)),
  },
  'an invitation': {
    at: () => '/settings/members',
    fill: inDialog('Invite member', 'Create invite link', named),
    count: () => lengthOf(tunery.invitations.list(all)),
  },
  'a deployment': {
    at: () => '/deployments',
    fill: inDialog('Deploy model', 'Deploy', async (form, name) => {
      await choose(form, 'Model', new RegExp(`^${tiny}`))
      await named(form, name.replaceAll(' ', '-'))
    }),
    count: deployments,
  },
  'a deployment of a model': {
    at: () => `/models/${model}`,
    fill: inDialog('Deploy', 'Deploy', (form, name) => named(form, name.replaceAll(' ', '-'))),
    count: deployments,
  },
  'an evaluation': {
    at: () => `/evaluations?model=${model}`,
    fill: inDialog('', 'Evaluate', async (form) => {
      await choose(form, 'Dataset', /^colours/)
      await form.getByRole('textbox', { name: /^Rows/ }).fill('1')
    }),
    count: () => lengthOf(tunery.evaluations.list(all)),
  },
  'an export': {
    at: () => `/exports?model=${model}`,
    fill: inDialog('', 'Export', async () => {}),
    count: () => lengthOf(tunery.exports.list(all)),
  },
  'a share link': {
    at: () => `/models/${model}?tab=shares`,
    fill: inDialog('Create link', 'Create link', async () => {}),
    count: () => lengthOf(tunery.models.shares.list(model, all)),
  },
  'an imported adapter': {
    at: () => '/models',
    fill: inDialog('Import adapter', 'Import', async (form, name) => {
      await form.locator('input[type=file]').setInputFiles(adapter)
      await named(form, name)
    }),
    count: () => lengthOf(tunery.models.list(all)),
  },
  'pasted rows': {
    at: () => '/datasets',
    async fill(page, _form, name) {
      await click(page, 'Paste')
      await page.getByLabel('Rows').fill(colourRows(4))
      await page.getByLabel(/^Name/).fill(name)
      return page.getByRole('button', { name: 'Add the rows' })
    },
    count: datasets,
  },
  'corrected rows': {
    at: () => `/datasets/${broken}?tab=problems`,
    async fill(page, _form, name) {
      await page.getByRole('checkbox', { name: /line 5/ }).check()
      await page.getByLabel(/^Name/).fill(name)
      return page.getByRole('button', { name: 'Upload the corrected rows' })
    },
    count: datasets,
  },
  'a job': {
    at: () => `/jobs/new?dataset=${colours}&model=${encodeURIComponent(tiny)}`,
    async fill(page, _form, name) {
      await page.getByRole('textbox', { name: /^Name/ }).fill(name)
      return page.getByRole('button', { name: 'Start job' })
    },
    count: () => lengthOf(tunery.jobs.list(all)),
  },
}

/** Holds what a page sends until it is let through, so that a first request runs for as long as a test wants. */
async function slowNetwork(page: Page) {
  let sent = 0
  let answered = 0
  let open = () => {}
  let gate: Promise<void> = Promise.resolve()
  await page.route('**/v1/**', async (route) => {
    if (route.request().method() !== 'POST' || route.request().url().includes('estimate')) return route.continue()
    sent++
    await gate
    if (route.request().headers()['content-type']?.startsWith('multipart/')) {
      answered++
      return route.continue()
    }
    // The page may have been left meanwhile: what was sent has arrived all the same.
    const response = await route.fetch()
    answered++
    await route.fulfill({ response }).catch(() => {})
  })
  return {
    hold() {
      gate = new Promise((resolve) => {
        open = resolve
      })
    },
    sent: () => sent,
    /** Lets all through, and waits for the answers. */
    async release() {
      open()
      await until('the answers', () => sent > 0 && answered === sent)
    },
  }
}

for (const [what, { at, fill, count }] of Object.entries(makings)) {
  test(`${what} is made once, however often it is sent`, browserTest, async () => {
    const { page } = await service.visit()
    const network = await slowNetwork(page)
    for (const way of ['double click', 'again'] as const) {
      const before = await count()
      await page.goto(at())
      await settled(page)
      const sent = network.sent()
      const button = await fill(page, page.getByRole('dialog').last(), `${what} by ${way}`)
      await button.waitFor()
      network.hold()
      if (way === 'double click') await button.dblclick()
      else await button.click()
      await until('the request', () => network.sent() > sent)
      if (way === 'again') {
        // A change that is undone, so that it is not a double click's haste that is seen.
        const field = page.locator('form').getByRole('textbox').last()
        if ((await field.count()) > 0) {
          await field.press('x')
          await field.press('Backspace')
        }
        // By scripts: a page that shows no button any more has nothing to click.
        await page.evaluate(() => {
          for (const form of document.querySelectorAll('form')) form.requestSubmit()
          for (const each of document.querySelectorAll<HTMLElement>('form button[type=submit]')) each.click()
        })
      }
      await network.release()
      await until('it', async () => (await count()) > before)
      await settled(page)
      assert.equal((await count()) - before, 1, way)
    }
    await page.context().close()
  })
}

test('a job that is started again after a reload is the same job', browserTest, async () => {
  const { page } = await service.visit()
  const network = await slowNetwork(page)
  const { at, fill, count } = makings['a job']!
  const before = await count()
  await page.goto(at())
  await settled(page)
  const button = await fill(page, page.locator('main'), 'reloaded')
  network.hold()
  await button.click()
  await until('the request', () => network.sent() > 0)
  await page.reload()
  await network.release()
  await button.click()
  await page.waitForURL(/\/jobs\/job_/)
  assert.equal((await count()) - before, 1)
  // The same settings once more are another job.
  await page.goto(at())
  await (await fill(page, page.locator('main'), 'reloaded')).click()
  await page.waitForURL(/\/jobs\/job_/)
  assert.equal((await count()) - before, 2)
  await page.context().close()
})
