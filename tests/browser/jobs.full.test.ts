// Jobs in the browser: one watched to its end through cut connections and a refresh, and the history of all.
import assert from 'node:assert/strict'
import net from 'node:net'
import { test } from 'node:test'
import type { Page } from 'playwright-core'
import type { Job } from '../../sdk/index.ts'
import { colourRows, until } from '../support/client.ts'
import { tiny } from '../support/tiny.ts'
import {
  browserService,
  browserTest,
  choose,
  desktop,
  heading,
  patiently,
  phone,
  problemsOf,
  settled,
} from './support.ts'

const { service, tunery } = browserService('jobs')

const hostile = '<img src=x onerror="window.hit=1">'
const tab = (page: Page, name: string) => page.getByRole('tab', { name: new RegExp(`^${name}`) }).click()

/** A proxy of the running service, on a port of its own, whose connections can be cut. */
async function startCable() {
  const { port: target } = new URL(service.address)
  const sockets = new Set<net.Socket>()
  let cut = false
  const server = net.createServer((socket) => {
    const other = net.connect(Number(target), '127.0.0.1')
    for (const [one, opposite] of [
      [socket, other],
      [other, socket],
    ] as const) {
      sockets.add(one)
      one.on('error', () => {})
      one.on('close', () => {
        sockets.delete(one)
        opposite.destroy()
      })
    }
    if (cut) socket.destroy()
    else socket.pipe(other).pipe(socket)
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return {
    address: `http://127.0.0.1:${(server.address() as net.AddressInfo).port}`,
    cut() {
      cut = true
      for (const socket of sockets) socket.destroy()
    },
    mend() {
      cut = false
    },
    close() {
      for (const socket of sockets) socket.destroy()
      server.close()
    },
  }
}

/** The first and the last step of the curve, as its name tells them to those who do not see it. */
async function curve(page: Page): Promise<string> {
  const name = await page.getByRole('img', { name: /^Loss\. Training loss/ }).getAttribute('aria-label')
  return /Training loss(?: \(smoothed\))?: (.*?)\. /.exec(name ?? '')?.[1] ?? ''
}
/** The figure under `Step`. */
const stepOf = async (page: Page): Promise<number> =>
  Number((await page.locator('dl div', { hasText: /^Step/ }).locator('dd').first().innerText()).replace(/\D/g, ''))

async function passes(page: Page, step: number): Promise<void> {
  await until(`a step after ${step}`, async () => (await stepOf(page)) > step)
}

let watched: Job

test('a job is watched to its end through cut connections and a refresh, and loses nothing', browserTest, async (t) => {
  const dataset = await tunery.datasets.upload(colourRows(40), { name: 'colours' })
  const job = await tunery.jobs.create({
    model_id: tiny,
    dataset_id: dataset.id,
    name: `colours ${hostile}`,
    description: `notes ${hostile}`,
    config: {
      training_config: { epochs: 10, batch_size: 4 },
      evaluation_config: {
        validation_split: 0.2,
        every_steps: 20,
        keep_checkpoints: 2,
        sample_prompts: [`code of ${hostile}?`],
      },
    },
  })
  const cable = await startCable()
  t.after(cable.close)
  const { page } = await service.visit({ address: cable.address })
  await page.goto(`/jobs/${job.id}`)
  await heading(page, `colours ${hostile}`)
  const live = page.getByText('live', { exact: true })
  await live.waitFor(patiently)
  await passes(page, 0)

  cable.cut()
  await page.getByText('reconnecting…').waitFor()
  const before = await stepOf(page)
  cable.mend()
  await page.getByText('reconnecting…').waitFor({ state: 'detached' })
  await passes(page, before)

  await page.reload()
  await page.getByRole('img', { name: /^Loss\. Training loss/ }).waitFor()
  await page.getByRole('heading', { name: 'Trained model' }).waitFor(patiently)
  await page.getByText('completed', { exact: true }).waitFor()
  watched = await tunery.jobs.get(job.id)

  // The curve has every step that the service has told of, each once: its table shows every nth of them, the last, and
  // those that were evaluated.
  const told = new Set<number>()
  for await (const { data } of tunery.jobs.events(job.id))
    for (const [step] of (data?.losses ?? []) as [number, number][]) told.add(step)
  const all = [...told].sort((one, other) => one - other)
  const evaluated = new Set((await tunery.jobs.evaluations(job.id)).items.map(({ step }) => step))
  const every = Math.ceil(all.length / 50)
  const group = page.locator('figure').first()
  await group.getByText('Show as table').click()
  const shown = (await group.getByRole('rowheader').allInnerTexts()).map(Number)
  assert.deepEqual(
    shown,
    all.filter((step, index) => index % every === 0 || index === all.length - 1 || evaluated.has(step)),
  )
  assert.equal(all.length, watched.metrics.steps_trained)
  assert.match(await curve(page), /^from [\d.]+ to [\d.]+/)
  assert.equal(await page.evaluate(() => 'hit' in window), false)
})

test(
  'its samples, rows, checkpoints, log and settings are there, and a kept state is deployed',
  browserTest,
  async () => {
    const { page, complaints } = await service.visit()
    await page.goto(`/jobs/${watched.id}`)
    await tab(page, 'Sample answers')
    await page.getByText(`code of ${hostile}?`).waitFor()
    const slider = page.getByRole('slider', { name: 'At step' })
    await slider.focus()
    await page.keyboard.press('Home')
    await page.getByRole('heading', { name: 'At step 20', exact: true }).waitFor()
    assert.match(page.url(), /tab=samples/)
    await page.reload()
    await page.getByText('Before training').first().waitFor()

    await tab(page, 'Highest-loss rows')
    await page.getByText('Whole row').first().click()
    await page
      .getByText(/^code of \w+\?$/)
      .last()
      .waitFor()

    await tab(page, 'Log')
    await page
      .getByRole('table', { name: 'Log' })
      .getByText(/The job completed/)
      .getByRole('link', { name: `colours ${hostile}` })
      .waitFor()

    await tab(page, 'Settings')
    const setting = (name: string) => page.getByRole('row').filter({ has: page.getByRole('rowheader', { name }) })
    assert.match(await setting('epochs').innerText(), /10\s+set in the request/)
    assert.match(await setting('dropout').innerText(), /0\s+default/)

    await page.getByRole('button', { name: 'More actions' }).click()
    await page.getByRole('menuitem', { name: /^Edit/ }).click()
    await page.getByRole('textbox', { name: 'Name' }).fill(`renamed ${hostile}`)
    await page.getByRole('button', { name: 'Add metadata' }).click()
    await page.getByLabel('Key 1').fill('ticket')
    await page.getByLabel('Value 1').fill(hostile)
    await page.getByRole('button', { name: 'Save' }).click()
    await heading(page, `renamed ${hostile}`)
    await page.getByRole('definition').filter({ hasText: hostile }).first().waitFor()

    await tab(page, 'Checkpoints')
    const kept = page.getByRole('table', { name: 'Checkpoints' }).getByRole('row').nth(2)
    await kept.getByRole('button', { name: /^Deploy/ }).click()
    await page.getByRole('textbox', { name: 'Name' }).fill('colours-earlier')
    await page.getByRole('dialog').getByRole('button', { name: 'Deploy' }).click()
    await heading(page, 'colours-earlier')
    assert.equal(await page.evaluate(() => 'hit' in window), false)
    assert.deepEqual(complaints, [])
  },
)

test(
  'the rows that it held out are asked of base and model, which export and evaluation begin with',
  browserTest,
  async () => {
    const { page, complaints } = await service.visit()
    const job = await tunery.jobs.wait(watched.id)
    const heldOut = (await tunery.jobs.heldOut(watched.id)).items
    await page.goto(`/jobs/${watched.id}`)
    await page.getByRole('link', { name: 'Compare with base' }).click()
    await heading(page, 'Playground')
    await page.getByRole('textbox', { name: 'Max tokens' }).fill('8')
    await page.getByRole('button', { name: 'Run', exact: true }).click()
    const answers = page.getByRole('table', { name: 'Answers by row' })
    // The job was renamed; its model keeps its name.
    const { name } = await tunery.models.get(job.model!)
    await answers.getByRole('columnheader', { name }).waitFor()
    await page.getByRole('progressbar', { name: 'Rows answered' }).waitFor({ state: 'detached' })
    // The header and each row.
    assert.equal(await answers.getByRole('row').count(), 1 + heldOut.length)
    assert.equal(await answers.getByText('…', { exact: true }).count(), 0)

    await page.goto(`/jobs/${watched.id}`)
    await page.getByRole('link', { name: 'Export', exact: true }).click()
    const dialog = page.getByRole('dialog', { name: 'Export a model' })
    await dialog.getByRole('button', { name: 'Cancel' }).click()
    await dialog.waitFor({ state: 'detached' })
    assert.equal(new URL(page.url()).search, '')
    await page.goto(`/models/${job.model}`)
    await page.getByRole('link', { name: 'Evaluate', exact: true }).click()
    const form = page.getByRole('dialog', { name: 'New evaluation' })
    const chosen = form.getByRole('combobox', { name: 'Model' })
    await until('the model to be chosen', async () => (await chosen.inputValue()).includes(name))
    assert.deepEqual(complaints, [])
  },
)

test(
  'the history is filtered in its address, pauses, resumes and cancels, and compares jobs',
  browserTest,
  async () => {
    const { dataset_id } = watched
    const config = { training_config: { epochs: 50, batch_size: 1 } }
    const long = await tunery.jobs.create({ model_id: tiny, dataset_id, name: 'long', config })
    const waiting = await tunery.jobs.create({ model_id: tiny, dataset_id, name: `waits ${hostile}`, config })
    const { page, complaints } = await service.visit()
    await page.goto('/jobs')
    const row = (name: string) => page.getByRole('row').filter({ hasText: name })
    await row('long').getByText('running', { exact: true }).waitFor(patiently)
    const act = async (name: string, action: string) => {
      await row(name)
        .getByRole('button', { name: /^Actions/ })
        .click()
      await page.getByRole('menuitem', { name: action }).click()
    }
    await row('waits')
      .getByText(/^next in queue/)
      .waitFor()
    await act('waits', 'Pause')
    await row('waits').getByText('paused', { exact: true }).waitFor()
    await act('waits', 'Resume')
    await row('waits').getByText('queued', { exact: true }).waitFor()
    await act('waits', 'Cancel')
    await page.getByRole('alertdialog').getByText('ends without a model').waitFor()
    await page.getByRole('button', { name: 'Cancel job' }).click()
    await row('waits').getByText('cancelled', { exact: true }).waitFor()
    assert.equal((await tunery.jobs.get(waiting.id)).status, 'cancelled')

    await row('long').getByRole('checkbox').check()
    await row('renamed').getByRole('checkbox').check()
    await page.getByRole('link', { name: 'Compare 2 jobs' }).click()
    await heading(page, 'long')
    assert.match(page.url(), new RegExp(`with=${watched.id}`))
    const both = page.getByRole('img', { name: /^Loss\..*long: from.*renamed.*: from/ })
    await both.waitFor(patiently)
    await page.getByRole('button', { name: 'Time', exact: true }).click()
    await page.getByRole('button', { name: 'Log', exact: true }).click()
    await page.reload()
    await both.waitFor(patiently)
    assert.equal(await page.getByRole('button', { name: 'Log', exact: true }).getAttribute('aria-pressed'), 'true')
    for (const colorScheme of ['dark', 'light'] as const) {
      await page.emulateMedia({ colorScheme, reducedMotion: 'reduce' })
      await settled(page)
      assert.deepEqual(await problemsOf(page), [], colorScheme)
    }

    await page.getByRole('button', { name: 'Pause' }).click()
    await page.getByText('Other jobs can run meanwhile').waitFor(patiently)
    await page.getByRole('button', { name: 'Resume' }).click()
    await page.getByText('live', { exact: true }).waitFor()
    await page.getByRole('button', { name: 'Cancel job' }).click()
    await page.getByRole('button', { name: 'Cancel job' }).click()
    await page.getByText('cancelled', { exact: true }).waitFor()
    assert.equal((await tunery.jobs.get(long.id)).status, 'cancelled')

    await page.goto('/jobs?status=cancelled')
    await row('long').waitFor()
    assert.equal(await row('renamed').count(), 0)
    await page.getByRole('searchbox').fill('wai')
    await row('long').waitFor({ state: 'detached' })
    await page.waitForURL(/q=wai/)
    await page.reload()
    await row('waits').waitFor()
    assert.equal(await page.getByRole('searchbox').inputValue(), 'wai')
    await page.getByRole('searchbox').fill('nothing has this name')
    await page.getByRole('button', { name: 'Clear filters' }).click()
    await row('renamed').waitFor()
    // Jobs with the same metadata are a group, which a job leads to as well.
    await page.getByRole('combobox', { name: 'Metadata' }).getByText('All metadata').waitFor()
    await choose(page, 'Metadata', /^ticket=/)
    await row('long').waitFor({ state: 'detached' })
    await row('renamed').waitFor()
    await choose(page, 'Metadata', 'All metadata')
    await row('long').waitFor()
    // A setting as a column, also after a reload.
    await page.getByRole('button', { name: 'Columns' }).click()
    await page.getByRole('checkbox', { name: 'Epochs', exact: true }).check()
    await page.keyboard.press('Escape')
    await page.reload()
    await page.getByRole('columnheader', { name: 'Epochs' }).waitFor()
    await row('renamed').getByRole('cell', { name: '10', exact: true }).waitFor()
    for (const size of [phone, desktop]) {
      await page.setViewportSize(size)
      assert.deepEqual(await problemsOf(page), [], `${size.width} px`)
      assert.ok((await page.evaluate(() => document.documentElement.scrollWidth)) <= size.width)
    }
    assert.equal(await page.evaluate(() => 'hit' in window), false)
    assert.deepEqual(complaints, [])
  },
)
