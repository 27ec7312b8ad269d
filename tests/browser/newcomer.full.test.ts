// A newcomer's whole way in the browser: from the link of the first start over a key, an upload with an error, and a
// job, to a model that is compared with its base and evaluated.
import assert from 'node:assert/strict'
import { once } from 'node:events'
import net, { type AddressInfo } from 'node:net'
import { after, before, test } from 'node:test'
import type { Page } from 'playwright-core'
import { Tunery } from '../../sdk/index.ts'
import { colourRows } from '../support/client.ts'
import { type BrowserService, browserTest, choose, patiently, startBrowserService } from './support.ts'

let service: BrowserService
let network: Awaited<ReturnType<typeof startNetwork>>
let page: Page
let complaints: string[]
before(async () => {
  if (browserTest.skip) return
  service = await startBrowserService('newcomer', {}, { signIn: false })
  network = await startNetwork(Number(new URL(service.address).port))
  ;({ page, complaints } = await service.visit({ signedIn: false, address: network.address }))
})
after(async () => {
  network?.stop()
  await service?.stop()
})

/** What lies between the browser and the service; it can fail. */
async function startNetwork(port: number) {
  const sockets = new Set<net.Socket>()
  let up = true
  const server = net.createServer((browser) => {
    if (!up) return void browser.destroy()
    const upstream = net.connect(port, '127.0.0.1')
    for (const socket of [browser, upstream]) {
      sockets.add(socket)
      socket.on('error', () => {}).on('close', () => sockets.delete(socket))
    }
    browser.pipe(upstream).pipe(browser)
  })
  await once(server.listen(0, '127.0.0.1'), 'listening')
  const cut = () => {
    for (const socket of sockets) socket.destroy()
  }
  return {
    address: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    /** Every connection is lost, and new ones fail. */
    fail() {
      up = false
      cut()
    },
    recover() {
      up = true
    },
    stop() {
      cut()
      server.close()
    },
  }
}

const heading = (name: string | RegExp) => page.getByRole('heading', { level: 1, name }).waitFor()
const navigate = (name: string) =>
  page.getByRole('navigation', { name: 'Main' }).getByRole('link', { name, exact: true }).click()
const rows = colourRows(64).split('\n')
const wrongLine = 3
let key: string

/** The link of the first start leads to a password and to home, which says what comes next. */
async function enter(): Promise<void> {
  await page.goto(service.link.replace(service.address, network.address))
  await heading('Welcome to Tunery')
  await page.getByLabel('Name').fill('Nora Newcomer')
  await page.getByLabel('Email').fill('nora@example.com')
  await page.getByLabel('Password', { exact: true }).fill('a sentence of some length')
  await page.getByRole('button', { name: 'Set password' }).click()
  await heading('Home')
  await page.getByRole('heading', { name: '1. Upload examples' }).waitFor()
  // The page asked who is signed in before anybody was.
  complaints.length = 0
}

/** A key is made for a first program, which it lets in. */
async function makeKey(): Promise<void> {
  await navigate('Settings')
  await page.getByRole('tab', { name: 'API keys' }).click()
  await page.getByRole('button', { name: 'Create key' }).click()
  await page.getByRole('dialog').getByLabel('Name').fill('my first program')
  await page.getByRole('dialog').getByRole('button', { name: 'Create key' }).click()
  key = await page.getByTestId('secret').innerText()
  await page.getByRole('button', { name: 'Done' }).click()
  await page.getByRole('cell', { name: 'my first program', exact: true }).waitFor()
  const { data } = await new Tunery({ baseUrl: `${network.address}/v1`, apiKey: key }).models.callable.list()
  assert.ok(data.length > 0)
}

/** An error is told at its line, corrected there, and the rows become a good dataset. */
async function uploadAndCorrect(): Promise<void> {
  await navigate('Datasets')
  await heading('Datasets')
  const broken = rows.with(wrongLine - 1, rows[wrongLine - 1]!.replace('"content":', '"content"'))
  const buffer = Buffer.from(broken.join('\n'))
  await page.locator('input[type=file]').setInputFiles({ name: 'colours.jsonl', mimeType: 'text/plain', buffer })
  await heading(/^colours/)
  await page.getByText('invalid', { exact: true }).waitFor()
  assert.equal(await page.getByRole('link', { name: 'Train' }).count(), 0, 'nothing to train on yet')
  await page.getByRole('tab', { name: /^Problems/ }).click()
  const line = page.getByRole('textbox', { name: `Line ${wrongLine}` })
  assert.equal(await line.inputValue(), broken[wrongLine - 1])
  await line.fill(rows[wrongLine - 1]!)
  await page.getByText('Good JSON now').waitFor()
  await page.getByRole('button', { name: 'Upload the corrected rows' }).click()
  await heading(/\(corrected\)/)
  await page.getByText('valid', { exact: true }).waitFor()
}

/** A job is watched to its end, through a lost network and a refresh. */
async function train(): Promise<void> {
  await page.getByRole('link', { name: 'Train' }).click()
  await heading('New job')
  await page
    .locator('summary')
    .filter({ hasText: /^Training/ })
    .click()
  for (const [label, value] of [
    [/^Epochs/, '8'],
    [/^Batch size/, '2'],
    [/^Learning rate/, '0.02'],
  ] as const)
    await page.getByRole('textbox', { name: label }).fill(value)
  await page.getByRole('textbox', { name: /^Name/ }).fill('colours, by Nora')
  await page.getByRole('button', { name: 'Start job' }).click()
  await heading('colours, by Nora')
  const address = page.url()
  const live = page.getByRole('main').getByText('live', { exact: true })
  await live.waitFor(patiently)
  const step = async () => {
    const figures = await page.getByRole('main').locator('dl').first().innerText()
    return Number(/Step\s+([\d,]+)/.exec(figures)?.[1]?.replaceAll(',', '') ?? 0)
  }
  const moves = async () => {
    const from = await step()
    while ((await step()) <= from) await page.waitForTimeout(100)
  }
  await moves()
  network.fail()
  await page.getByRole('main').getByText('reconnecting…').first().waitFor()
  network.recover()
  await live.waitFor()
  await moves()
  // The page after the refresh is the same one, with all that has happened.
  await page.reload()
  await live.waitFor()
  assert.equal(page.url(), address)
  assert.ok((await step()) > 0)
  await page.getByRole('heading', { name: 'Trained model' }).waitFor(patiently)
  // The curve goes from the first step on, though the page was loaded in between.
  const curve = page.getByRole('img', { name: /^Loss\. Training loss \(smoothed\): from / })
  await curve.waitFor()
  await curve.focus()
  await page.keyboard.press('Home')
  await page.getByText(/^Step 1: Training loss/).waitFor({ state: 'attached' })
}

/** The base and the model answer side by side, each with its own weights. */
async function compare(): Promise<void> {
  await page.getByRole('link', { name: 'Compare with base' }).click()
  await heading('Playground')
  const temperature = page.getByRole('textbox', { name: 'Temperature' })
  await temperature.fill('0')
  await page.getByRole('textbox', { name: 'Max tokens' }).fill('12')
  await page.getByLabel('Your question').fill('code of red?')
  await page.getByRole('button', { name: 'Send' }).click()
  const answers = ['A', 'B'].map((letter) => page.getByRole('article', { name: `Answer of model ${letter}` }))
  const weights: string[] = []
  for (const answer of answers) {
    await answer.getByRole('button', { name: 'Details' }).click()
    weights.push(await page.getByRole('dialog').innerText())
    await page.keyboard.press('Escape')
    await page.getByRole('dialog').waitFor({ state: 'detached' })
    // What they say is no test of the dashboard: weights at random learn little, and may end at once.
    await answer.getByText(/^\d+ in, \d+ out$/).waitFor()
  }
  assert.notEqual(weights[0], weights[1])
}

/** An evaluation says which of the two is better, or that it cannot tell. */
async function evaluate(): Promise<void> {
  await navigate('Evaluations')
  await page.getByRole('button', { name: 'New evaluation' }).first().click()
  await choose(page, 'Model', /colours, by Nora/)
  await choose(page, /^Baseline/, /tiny/)
  await choose(page, 'Dataset', /\(corrected\)/)
  await page.getByRole('textbox', { name: /^Rows/ }).fill('8')
  await page.getByText('Name and sampling').click()
  await page.getByRole('textbox', { name: /^Max tokens/ }).fill('12')
  await page.getByRole('button', { name: 'Evaluate' }).click()
  await page.getByText(/^(The model|Too few rows)/).waitFor(patiently)
  await page
    .getByRole('table', { name: 'Scores' })
    .getByRole('row', { name: /Baseline/ })
    .waitFor()
}

test('a newcomer gets from the first link to a model that is compared with its base', browserTest, async (t) => {
  for (const step of [enter, makeKey, uploadAndCorrect, train, compare, evaluate]) {
    const started = performance.now()
    await step()
    t.diagnostic(`${step.name}: ${Math.round(performance.now() - started)} ms`)
  }
  // Nothing but what the failing network has caused.
  assert.deepEqual(
    complaints.filter((complaint) => !/ERR_/.test(complaint)),
    [],
  )
})
