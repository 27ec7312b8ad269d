// 4-bit weights served as an 8-bit copy: the same model except for rounding, or the file itself if no copy is possible.
import assert from 'node:assert/strict'
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  rmSync,
  statSync,
  truncateSync,
  utimesSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, test } from 'node:test'
import { gainsFromEightBits, loadFastestFormat } from '../../../engine/llama/eight-bit-weights.ts'
import { openLibrary } from '../../../engine/llama/library.ts'
import { freeModel, loadModel } from '../../../engine/llama/model.ts'
import { modelName, modelPath, root, startEngine } from './engine-process.ts'

const library = openLibrary(join(root, '.local/llama/lib'))
const processor = { threads: 2, has_own_kernels: false }
const fourBits = { file_type: '3', is_embedding_model: false }
const skip = gainsFromEightBits(library, processor, fourBits, 98e6)
  ? false
  : 'this processor multiplies 4-bit weights as fast as 8-bit ones'
const folder = mkdtempSync(join(tmpdir(), 'tunery-eight-bits-'))
after(() => rmSync(folder, { recursive: true }))
const file = join(folder, 'model.gguf')
const copy = join(folder, 'model.eight-bits.gguf')
copyFileSync(modelPath, file)
const eightBits = '7'
async function load(threads = 2) {
  const open = async (path: string) => ({ model: await loadModel(library, path) })
  const { opened } = await loadFastestFormat(library, file, { ...processor, threads }, 1e6, open)
  freeModel(library, opened.model)
  return opened.model.file_type
}

test('the copy is written once, again for a changed file, and no partial file remains', { skip }, async () => {
  assert.notEqual(await load(64), eightBits, 'with many threads the file itself is loaded')
  assert.ok(!existsSync(copy))
  assert.equal(await load(), eightBits)
  const { ino } = statSync(copy)
  assert.equal(await load(), eightBits)
  assert.equal(statSync(copy).ino, ino, 'the copy was written twice')
  utimesSync(file, new Date(), new Date())
  assert.deepEqual(await Promise.all([load(), load()]), [eightBits, eightBits])
  assert.notEqual(statSync(copy).ino, ino, 'the copy of an older file was served')
  assert.deepEqual(readdirSync(folder).sort(), ['model.eight-bits.gguf', 'model.gguf'])
})

test('a damaged copy is rewritten, and if none can be written the file itself is loaded', { skip }, async () => {
  assert.equal(await load(), eightBits)
  const { mtime } = statSync(file)
  truncateSync(copy, 1_000_000)
  utimesSync(copy, mtime, mtime)
  assert.equal(await load(), eightBits)
  assert.ok(statSync(copy).size > 100e6)
  rmSync(copy)
  mkdirSync(copy)
  assert.notEqual(await load(), eightBits)
  rmSync(copy, { recursive: true })
})

test('the 8-bit copy gives the log-probabilities of the file, except for rounding', { skip }, async () => {
  const prompt =
    'The harbour wakes before the town does. Gulls settle on the masts, ropes creak, and a man in a yellow coat ' +
    'counts crates of fish while the ice melts through his fingers. By seven the first customers arrive; by nine ' +
    'everything that was worth buying has gone. "Tomorrow," he says, "there will be mackerel, if ' +
    'the wind turns." It has not turned for three days.'
  const scores: number[][] = []
  for (const options of [[], ['--no-eight-bits']]) {
    const engine = await startEngine(['--model', `${modelName}=${modelPath}`, ...options])
    const { json } = await engine.ask('POST', '/v1/completions', {
      model: modelName,
      prompt,
      echo: true,
      logprobs: 1,
      max_tokens: 1,
      temperature: 0,
    })
    scores.push(json.choices[0].logprobs.token_logprobs.slice(1, -1))
    await engine.stop()
  }
  const [eight, four] = scores as [number[], number[]]
  assert.ok(four.length > 60)
  const apart = four.reduce((sum, one, index) => sum + Math.abs(one - eight[index]!), 0) / four.length
  // Activations are rounded too, differently for each: docs/decisions/010-weights-in-eight-bits.md.
  assert.ok(apart > 0 && apart < 0.15, `${apart} nats apart on average`)
})
