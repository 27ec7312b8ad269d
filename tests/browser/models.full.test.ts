// The page of models says in which form the weights of a base answer: the eight-bit one with its distance, the original
// as set, or the original and why.
import assert from 'node:assert/strict'
import { copyFileSync, cpSync, mkdtempSync, readFileSync, rmSync, statSync, utimesSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { eightBitsFile, writeEightBitsRecord } from '../../lib/eight-bits.ts'
import { tiny, tinyModelsDir } from '../support/tiny.ts'
import { type BrowserService, browserTest, settled, startBrowserService } from './support.ts'

const models = mkdtempSync(path.join(os.tmpdir(), 'tunery-page-models-'))
const file = path.join(models, tiny, 'model.gguf')
let service: BrowserService
before(async () => {
  cpSync(path.join(tinyModelsDir(), tiny), path.join(models, tiny), { recursive: true })
  copyFileSync(file, eightBitsFile(file))
  const { mtime } = statSync(file)
  utimesSync(eightBitsFile(file), mtime, mtime)
  if (!browserTest.skip) service = await startBrowserService('models', { TUNERY_MODELS_DIR: models })
})
after(async () => {
  await service?.stop()
  rmSync(models, { recursive: true })
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
  await isSaid(/^Served in 8-bit \(.* MB, from BF16\): same top token for 97\.5% of 326 tokens, 0\.0002 nats/)

  writeEightBitsRecord(file, { original_type, distance, problem: 'Its eight-bit form answers from the next load.' })
  await isSaid(/^Served with its original weights\. Its eight-bit form answers from the next load\.$/)

  const description = path.join(models, tiny, 'model.json')
  const described = JSON.parse(readFileSync(description, 'utf8'))
  writeFileSync(description, JSON.stringify({ ...described, keep_original_weights: true }))
  await isSaid(/^Served with its original weights\.$/)
  assert.deepEqual(complaints, [])
  await page.context().close()
})
