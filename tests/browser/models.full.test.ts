// Base models: their list, their pages, and in which form the weights of one answer: the eight-bit
// one with its distance, the original as set, or the original and why.
import assert from 'node:assert/strict'
import { copyFileSync, cpSync, mkdtempSync, readFileSync, rmSync, statSync, utimesSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import type { Page } from 'playwright-core'
import { eightBitsFile, writeEightBitsRecord } from '../../lib/eight-bits.ts'
import { allowed } from '../support/allowed-time.ts'
import { modelHub } from '../support/model-hub.ts'
import { tiny, tinyModelsDir } from '../support/tiny.ts'
import { installColourModel } from '../support/trained.ts'
import { type BrowserService, browserTest, settled, startBrowserService } from './support.ts'

const models = mkdtempSync(path.join(os.tmpdir(), 'tunery-page-models-'))
const file = path.join(models, tiny, 'model.gguf')
let service: BrowserService
let hub: Awaited<ReturnType<typeof modelHub>>
const triable = 'HuggingFaceTB/SmolLM2-360M-Instruct'
before(async () => {
  hub = await modelHub(path.join(tinyModelsDir(), tiny, 'hf'), triable)
  cpSync(path.join(tinyModelsDir(), tiny), path.join(models, tiny), { recursive: true })
  copyFileSync(file, eightBitsFile(file))
  const { mtime } = statSync(file)
  utimesSync(eightBitsFile(file), mtime, mtime)
  const settings = {
    TUNERY_MODELS_DIR: models,
    TUNERY_HUGGINGFACE_URL: hub.url,
    TUNERY_MODEL_DOWNLOADS: 'any',
    TUNERY_MIN_FREE_DISK_MB: '0',
  }
  if (!browserTest.skip) service = await startBrowserService('models', settings)
})
after(async () => {
  await service?.stop()
  hub.close()
  rmSync(models, { recursive: true })
})

async function choose(page: Page, label: string, option: string): Promise<void> {
  await page.getByRole('combobox', { name: label }).click()
  await page.getByRole('option', { name: option }).click()
}

test('the page of a base says what it needs here, and what was tried of its family', browserTest, async () => {
  const { page, complaints } = await service.visit()
  await page.goto('/models/base/Qwen/Qwen3-30B-A3B-Instruct-2507')
  await page.getByText(/30\.5B, 3\.4B of them for a token/).waitFor()
  const needs = page.getByRole('table', { name: 'On this machine' })
  await needs.getByRole('row', { name: /Train in full .* too much/ }).waitFor()
  await page
    .getByText(/Not tried yet|architecture qwen3_moe/)
    .first()
    .waitFor()
  await page.goto(`/models/base/${tiny}`)
  await page
    .getByRole('table', { name: 'On this machine' })
    .getByRole('row', { name: /Train by lora .* fits/ })
    .waitFor()
  assert.deepEqual(complaints, [])
  await page.context().close()
})

test('base models are searched, filtered and sorted, and each has a page with what to do', browserTest, async () => {
  const { page, complaints } = await service.visit()
  await page.goto('/models')
  await settled(page)
  const bases = page.getByRole('table', { name: 'Base models' })
  await bases
    .getByRole('row', { name: /Llama-3\.2-1B/ })
    .getByText('gated')
    .waitFor()
  await page.getByText(/It takes .* to train by lora/).waitFor()
  await choose(page, 'Fits this machine', 'Trains here by lora')
  await bases.getByRole('row', { name: /MiniLM/ }).waitFor({ state: 'detached' })
  await choose(page, 'Task', 'Code')
  await bases.getByRole('row', { name: /SmolLM2/ }).waitFor({ state: 'detached' })
  await choose(page, 'Task', 'Any task')
  await bases.getByRole('button', { name: 'Parameters' }).click()
  await page.waitForFunction(() => document.querySelector('th[aria-sort]'))
  await page.getByRole('searchbox', { name: 'Search base models' }).fill('no such base')
  await page.getByText('No base models match').waitFor()
  await page.getByRole('searchbox', { name: 'Search base models' }).fill('')
  await page.getByRole('searchbox', { name: 'Search base models' }).pressSequentially(tiny)
  // Once typing pauses; until then it has the search before.
  await page.waitForURL(({ searchParams }) => searchParams.get('q') === tiny)
  await page.reload()
  await bases.getByRole('link', { name: new RegExp(tiny) }).click()
  await page.getByRole('heading', { level: 1, name: tiny }).waitFor()
  await page.getByText('None yet').waitFor()
  await page.getByRole('link', { name: 'Train', exact: true }).click()
  await page.getByRole('heading', { level: 1, name: 'New job' }).waitFor()
  await page.setViewportSize({ width: 360, height: 800 })
  await page.goto('/models/base/Qwen/Qwen3-0.6B')
  const cells = page.getByRole('table', { name: 'Its family of models' }).locator('td')
  await cells.getByText('yes (<think>)').waitFor()
  const clipped = await cells.evaluateAll((all) =>
    all.filter((cell) => cell.scrollWidth > cell.clientWidth).map((cell) => cell.textContent),
  )
  assert.deepEqual(clipped, [], 'cells are cut on a phone')
  for (const id of ['no/such', '']) {
    await page.goto(`/models/base/${id}`)
    await page.getByText('There is no such base model').waitFor()
    await page.getByRole('heading', { level: 1, name: 'Base model', exact: true }).waitFor()
    await page.getByRole('link', { name: 'All models' }).waitFor()
  }
  assert.deepEqual(complaints, [])
  await page.context().close()
})

test('a base of the catalogue is downloaded to be tried, and then asked in the playground', browserTest, async () => {
  const { page, complaints } = await service.visit()
  await page.goto(`/models/base/${triable}`)
  await page.getByRole('button', { name: 'Try it' }).click()
  await page.waitForURL(({ pathname }) => pathname === '/playground', { timeout: allowed(120_000) })
  await page.getByRole('textbox', { name: 'Max tokens' }).fill('4')
  await page.getByLabel('Your question').fill('Say something.')
  await page.getByRole('button', { name: 'Send', disabled: false }).click()
  await page.getByText(/^\d+ in, \d+ out$/).waitFor()
  assert.deepEqual(complaints, [])
  await page.context().close()
})

test('the playground says that a model is asked otherwise than it was trained, and mends it', browserTest, async () => {
  const { page, complaints } = await service.visit()
  // Colours were trained without a system prompt.
  const model = await installColourModel({ dataDir: service.folder.dataDir })
  await page.goto(`/playground?models=${model}`)
  await settled(page)
  const system = page.getByRole('textbox', { name: /^System prompt/ })
  const ask = async () => {
    await page.getByLabel('Your question').fill('code of red?')
    await page.getByRole('button', { name: 'Send', disabled: false }).click()
  }
  await system.fill('Be brief.')
  await ask()
  const notice = page.getByText(/trained without a system prompt\. This request has one\. It may answer as if/)
  await notice.waitFor()
  await page.getByRole('button', { name: 'Remove the system prompt' }).click()
  assert.equal(await system.inputValue(), '')
  await page.getByRole('button', { name: 'New conversation' }).click()
  await ask()
  await page.getByText(/^\d+ in, \d+ out$/).waitFor()
  assert.equal(await notice.count(), 0)
  assert.deepEqual(complaints, [])
  await page.context().close()
})

test('a base has a note of the form that answers', browserTest, async () => {
  const { page, complaints } = await service.visit()
  const isSaid = async (note: RegExp) => {
    await page.goto('/models')
    await settled(page)
    const row = page.getByRole('table', { name: 'Base models' }).getByRole('row', { name: new RegExp(tiny) })
    await row.getByText(note).waitFor()
  }
  const original_type = 'BF16'
  const distance = { tokens: 326, divergence: 0.0002, logprob_difference: 0.0156, same_top: 0.9755 }
  writeEightBitsRecord(file, { original_type, distance })
  await isSaid(/^Served in 8-bit \(.* MB, from BF16\): same top token for 97\.6% of 326 tokens, 0\.0002 nats/)

  writeEightBitsRecord(file, { original_type, distance, problem: 'Its eight-bit form answers from the next load.' })
  await isSaid(/^Served with its original weights\. Its eight-bit form answers from the next load\.$/)

  const description = path.join(models, tiny, 'model.json')
  const described = JSON.parse(readFileSync(description, 'utf8'))
  writeFileSync(description, JSON.stringify({ ...described, keep_original_weights: true }))
  await isSaid(/^Served with its original weights\.$/)
  assert.deepEqual(complaints, [])
  await page.context().close()
})
