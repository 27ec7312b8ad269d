// Pictures in the dashboard: attached to a question by file, paste and drop, bounded and removable; shown with rows;
// and which bases see them.
import assert from 'node:assert/strict'
import { mkdirSync } from 'node:fs'
import path from 'node:path'
import { after, before, test } from 'node:test'
import type { Page } from 'playwright-core'
import { dataUrl, disk } from '../support/pictures.ts'
import { noVision, tinyEye, visionModelsDir } from '../support/tiny-vision.ts'
import {
  type BrowserService,
  browserTest,
  desktop,
  patiently,
  phone,
  problemsOf,
  settled,
  startBrowserService,
} from './support.ts'

const skip = browserTest.skip || noVision
let service: BrowserService
before(async () => {
  if (!skip) service = await startBrowserService('pictures', { TUNERY_MODELS_DIR: visionModelsDir('smolvlm') })
})
after(() => service?.stop())

const [red, blue] = [disk(96, 72, [255, 0, 0]), disk(72, 96, [0, 0, 255])]
const address = `/playground?models=${encodeURIComponent(tinyEye)}`
/** Where to look at what was tested: SCREENSHOTS names a folder. */
async function look(page: Page, name: string): Promise<void> {
  const folder = process.env.SCREENSHOTS
  if (!folder) return
  mkdirSync(folder, { recursive: true })
  await page.screenshot({ path: path.join(folder, `${name}.png`) })
}
const question = (page: Page) => page.getByRole('textbox', { name: 'Your question' })
const attached = (page: Page) => page.getByAltText(/^\d of your question$/)

/** Fires a paste or a drop with a file, as the system would. */
const give = (page: Page, type: 'paste' | 'drop', file: Buffer, name: string) =>
  question(page).evaluate(
    (element, [type, bytes, name]) => {
      const data = new DataTransfer()
      data.items.add(new File([Uint8Array.from(bytes as number[])], name as string, { type: 'image/png' }))
      const init = { bubbles: true, cancelable: true }
      element.dispatchEvent(
        type === 'paste'
          ? new ClipboardEvent('paste', { ...init, clipboardData: data })
          : new DragEvent('drop', { ...init, dataTransfer: data }),
      )
    },
    [type, [...file], name] as const,
  )

test('pictures go with a question, and are asked about', { skip }, async () => {
  const { page, complaints } = await service.visit()
  await page.goto(address)
  await settled(page)
  await page.getByLabel('Picture files').setInputFiles([
    { name: 'red.png', mimeType: 'image/png', buffer: red },
    { name: 'notes.png', mimeType: 'image/png', buffer: Buffer.from('no picture') },
  ])
  await page.getByText('notes.png is not a PNG, JPEG, WEBP or GIF picture.').waitFor()
  await give(page, 'paste', blue, 'pasted.png')
  await attached(page).nth(1).waitFor()
  await give(page, 'drop', red, 'dropped.png')
  await attached(page).nth(2).waitFor()
  await look(page, 'composer')
  await page.setViewportSize(phone)
  await look(page, 'composer-phone')
  await page.setViewportSize(desktop)
  await page.getByRole('button', { name: 'Remove picture 2' }).click()
  assert.equal(await attached(page).count(), 2)
  await question(page).fill('What is it?')
  const asked = page.waitForRequest((request) => request.url().endsWith('/chat/completions'))
  await page.getByRole('button', { name: 'Send' }).click()
  const { messages } = (await asked).postDataJSON()
  const picture = { type: 'image_url', image_url: { url: dataUrl(red) } }
  assert.deepEqual(messages.at(-1).content, [picture, picture, { type: 'text', text: 'What is it?' }])
  await page.getByAltText('2 of the question').waitFor()
  assert.equal(await attached(page).count(), 0)
  await page
    .getByRole('article', { name: 'Answer of model A' })
    .getByText(/^\d+ in, \d+ out$/)
    .waitFor()
  await look(page, 'answer')

  await page.getByRole('button', { name: 'View code' }).click()
  await page.getByText('Pictures are shortened here').waitFor()
  assert.ok((await page.getByRole('dialog').innerText()).length < 5000)
  await page.keyboard.press('Escape')
  // Ten for a conversation: two are asked already.
  await page
    .getByLabel('Picture files')
    .setInputFiles(
      Array.from({ length: 9 }, (_, index) => ({ name: `${index}.png`, mimeType: 'image/png', buffer: red })),
    )
  await page.getByText('A conversation shows 10 pictures at most.').waitFor()
  assert.equal(await attached(page).count(), 8)
  assert.deepEqual(await problemsOf(page), [])
  await page.waitForTimeout(500)
  // An address that names models starts over.
  await page.goto('/playground')
  await page.getByText('2 pictures not kept after reloading').waitFor()
  assert.deepEqual(complaints, [])
  await page.context().close()
})

test('rows are asked with their pictures, which are shown', { skip }, async () => {
  const { tunery } = service
  const row = (file: Buffer, answer: string) =>
    JSON.stringify({
      messages: [
        {
          role: 'user',
          content: [
            { type: 'text', text: 'Which colour?' },
            { type: 'image_url', image_url: { url: dataUrl(file) } },
          ],
        },
        { role: 'assistant', content: answer },
      ],
    })
  const dataset = await tunery.datasets.upload(`${row(red, 'red')}\n${row(blue, 'blue')}\n`, { name: 'disks' })
  const { page, complaints } = await service.visit()
  const asked: unknown[] = []
  page.on('request', (request) => {
    if (request.url().endsWith('/chat/completions')) asked.push(request.postDataJSON().messages.at(-1).content[1])
  })
  await page.goto(`${address}&rows=${dataset.id}`)
  await settled(page)
  await page.getByRole('button', { name: 'Run', exact: true }).click()
  const rows = page.getByRole('table', { name: 'Answers by row' })
  await rows.getByAltText('1 of the row').nth(1).waitFor()
  await page.getByText(/: \d of 2 match/).waitFor(patiently)
  await rows.scrollIntoViewIfNeeded()
  await look(page, 'rows')
  assert.deepEqual(
    asked.map((part) => JSON.stringify(part)).sort(),
    [red, blue].map((file) => JSON.stringify({ type: 'image_url', image_url: { url: dataUrl(file) } })).sort(),
  )
  assert.deepEqual(complaints, [])
  await page.context().close()
})

test('the list of bases says which see pictures here', { skip }, async () => {
  const { page, complaints } = await service.visit()
  await page.goto('/models')
  await settled(page)
  const bases = page.getByRole('table', { name: 'Base models' })
  await bases
    .getByRole('row', { name: new RegExp(tinyEye) })
    .getByText('reads images')
    .waitFor()
  await look(page, 'models')
  assert.deepEqual(await problemsOf(page), [])
  assert.deepEqual(complaints, [])
  await page.context().close()
})
