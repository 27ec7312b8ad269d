// Answers of any length and shape: the pages that show them keep their width and stay usable while they stream.
import assert from 'node:assert/strict'
import http from 'node:http'
import type { AddressInfo } from 'node:net'
import { after, before, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Page } from 'playwright-core'
import { tiny } from '../support/tiny.ts'
import { installColourModel } from '../support/trained.ts'
import { type BrowserService, browserTest, desktop, phone, settled, startBrowserService } from './support.ts'

let service: BrowserService
let proxy: http.Server
let address: string
/** What every question is answered with: this word, so often, and then the end, or more of it bit by bit. */
let answer = { word: '', count: 0, end: true }

/** The service, but for the answers: no model writes 10 MB within the time of a test. */
function forward(request: http.IncomingMessage, response: http.ServerResponse): void {
  if (/\/chat\/completions$|\/share\/chat$/.test(request.url!)) return void writeAnswer(response)
  const { url, method, headers } = request
  const passed = http.request(new URL(url!, service.address), { method, headers }, (found) => {
    response.writeHead(found.statusCode!, found.headers)
    found.pipe(response)
  })
  passed.on('error', () => response.destroy())
  response.on('close', () => passed.destroy())
  request.pipe(passed)
}

async function writeAnswer(response: http.ServerResponse): Promise<void> {
  const { word, count, end } = answer
  const event = (choice: object) =>
    `data: ${JSON.stringify({
      id: 'c',
      object: 'chat.completion.chunk',
      created: 1,
      model: tiny,
      choices: [{ index: 0, ...choice }],
    })}\n\n`
  const left = new Promise((resolve) => response.once('close', resolve))
  response.writeHead(200, { 'content-type': 'text/event-stream' })
  for (let sent = 0; sent < count && !response.destroyed; sent++)
    if (!response.write(event({ delta: { content: word }, finish_reason: null })))
      await Promise.race([left, new Promise((resolve) => response.once('drain', resolve))])
  if (end) return void response.end(`${event({ delta: {}, finish_reason: 'stop' })}data: [DONE]\n\n`)
  while (!response.destroyed) {
    response.write(event({ delta: { content: 'x' }, finish_reason: null }))
    await Promise.race([left, sleep(5)])
  }
}

before(async () => {
  if (browserTest.skip) return
  service = await startBrowserService('long-answers', { TUNERY_SHARE_LINKS: 'on' })
  proxy = http.createServer(forward)
  await new Promise<void>((resolve) => proxy.listen(0, '127.0.0.1', resolve))
  address = `http://127.0.0.1:${(proxy.address() as AddressInfo).port}`
})
after(async () => {
  proxy?.closeAllConnections()
  proxy?.close()
  await service?.stop()
})

const isAsWideAsItsWindow = (page: Page) =>
  page.evaluate(() => document.documentElement.scrollWidth <= document.documentElement.clientWidth)

async function ask(page: Page, question: string): Promise<void> {
  await page.getByLabel('Your question').fill(question)
  await page.getByLabel('Your question').press('Enter')
}

/** 10 MB without a space. */
const long = { word: 'x'.repeat(8000), count: 1250 }

test('Stop stays clickable while an answer of 10 MB without a space streams', browserTest, async (t) => {
  const { page } = await service.visit({ address })
  await page.goto(`/playground?models=${tiny}`)
  await settled(page)
  answer = { ...long, end: false }
  await ask(page, 'Write.')
  await page.getByText(/^9,98\d,\d+ more characters/).waitFor()
  const clicked = performance.now()
  await page.getByRole('button', { name: 'Stop', exact: true }).click({ timeout: 5000 })
  await page.getByText('Stopped').waitFor({ timeout: 5000 })
  t.diagnostic(`${Math.round(performance.now() - clicked)} ms from the click to the end`)
  await page.getByRole('button', { name: 'Show more' }).click()
  await page.getByText(/^9,96\d,\d+ more characters/).waitFor({ timeout: 5000 })
  assert.ok(await isAsWideAsItsWindow(page))
  await page.context().close()
})

test('a question and answers of one long word leave the page as wide as its window', browserTest, async () => {
  answer = { word: 'y'.repeat(5000), count: 1, end: true }
  for (const size of [desktop, phone]) {
    const { page } = await service.visit({ size, address })
    await page.goto(`/playground?models=${tiny},${tiny}`)
    await settled(page)
    await ask(page, 'z'.repeat(3000))
    await page.getByTestId('answer').filter({ hasText: 'yyyy' }).nth(1).waitFor()
    assert.ok(await isAsWideAsItsWindow(page), `${size.width} pixels`)
    await page.context().close()
  }
})

test('a shared page keeps its width and its Stop with an answer of 10 MB and a hostile name', browserTest, async () => {
  const { tunery } = service
  const model = await installColourModel({ dataDir: service.folder.dataDir })
  const hostile = `${'n'.repeat(150)}<img src=x onerror="hit=1">`
  await tunery.models.update(model, { name: hostile, description: 'd'.repeat(2000) })
  const { link } = await tunery.models.shares.create(model, {})
  for (const size of [desktop, phone]) {
    const { page } = await service.visit({ size, address, signedIn: false })
    await page.goto(link.replace(service.address, address))
    await page.getByRole('heading', { level: 1, name: hostile }).waitFor()
    answer = { ...long, end: false }
    await ask(page, 'z'.repeat(3000))
    await page.getByText(/^9,98\d,\d+ more characters/).waitFor()
    await page.getByRole('button', { name: 'Stop', exact: true }).click({ timeout: 5000 })
    await page.getByRole('button', { name: 'Send' }).waitFor({ timeout: 5000 })
    assert.ok(await isAsWideAsItsWindow(page), `${size.width} pixels`)
    assert.equal(await page.evaluate(() => 'hit' in window), false)
    await page.context().close()
  }
})

test('a row of one endless word leaves the pages of its dataset as wide as their window', browserTest, async () => {
  const { tunery } = service
  const word = 'w'.repeat(200_000)
  const row = JSON.stringify({
    messages: [
      { role: 'user', content: word },
      { role: 'assistant', content: word },
    ],
  })
  const dataset = await tunery.datasets.upload(row, { name: word.slice(0, 200) })
  for (const tab of ['overview', 'rows', 'tokens', 'problems']) {
    const { page } = await service.visit({ size: phone })
    await page.goto(`/datasets/${dataset.id}?tab=${tab}`)
    await settled(page)
    assert.ok(await isAsWideAsItsWindow(page), tab)
    await page.context().close()
  }
})
