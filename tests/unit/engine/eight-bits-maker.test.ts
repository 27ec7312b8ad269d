// Who makes eight-bit forms beside the answers: what it does where memory or disk is short, and what it tells of it.
import assert from 'node:assert/strict'
import { copyFileSync, mkdtempSync, readdirSync, rmSync, statSync, utimesSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { createEightBitsMaker } from '../../../engine/models/eight-bits.ts'
import type { ServedModel } from '../../../engine/models/models.ts'
import {
  type EightBitsDistance,
  eightBitsFile,
  eightBitsProblem,
  readEightBits,
  writeEightBitsRecord,
} from '../../../lib/eight-bits.ts'
import { root } from '../../../lib/root.ts'
import { until } from '../../support/client.ts'
import { tiny, tinyModelsDir } from '../../support/tiny.ts'

const folder = mkdtempSync(path.join(tmpdir(), 'tunery-maker-'))
after(() => rmSync(folder, { recursive: true }))
const original = path.join(tinyModelsDir(), tiny, 'model.gguf')
const distance: EightBitsDistance = { tokens: 326, divergence: 0.0002, logprob_difference: 0.0156, same_top: 0.94 }

/** A base in its own folder, and its maker. `measured`: its form is there. */
function base(name: string, { measured = false, available = 8e9, min_free = 1e6 } = {}) {
  const file = path.join(folder, `${name}.gguf`)
  copyFileSync(original, file)
  if (measured) {
    copyFileSync(original, eightBitsFile(file))
    const { mtime } = statSync(file)
    utimesSync(eightBitsFile(file), mtime, mtime)
    writeEightBitsRecord(file, { original_type: 'BF16', distance })
  }
  const served = { name, path: file, model: { is_eight_bit_copy: false } } as unknown as ServedModel
  const copy = { ...served, model: { is_eight_bit_copy: true } } as unknown as ServedModel
  const told: string[] = []
  let loaded = served
  const maker = createEightBitsMaker({
    library_folder: path.join(root, '.local/llama/lib'),
    min_free_bytes: min_free,
    replaces: true,
    models: () => ({
      list: () => [loaded],
      replace: async () => {
        loaded = copy
        return true
      },
    }),
    open: async () => null,
    available_bytes: () => available,
    log: { info: (_, message) => told.push(message), warn: (_, message) => told.push(message) },
  })
  const make = async () => {
    maker.make(loaded)
    const before = told.length
    await until('the maker to end', () => told.length > before)
  }
  return {
    file,
    make,
    isReplaced: () => loaded === copy,
    /** As after a start, which finds the form. */
    loadAgain: () => {
      loaded = copy
      maker.make(copy)
    },
  }
}

test('where memory is short for both forms the original answers, and the card says so until a load', async () => {
  const { file, make, isReplaced, loadAgain } = base('memory', { measured: true, available: 200e6 })
  await make()
  assert.equal(isReplaced(), false)
  assert.match(
    eightBitsProblem(file)!,
    /^Its eight-bit form answers from the next load: .* needs \d+ MB .* 200 MB are free\.$/,
  )
  assert.deepEqual(readEightBits(file)?.distance, distance, 'what was measured is kept')
  loadAgain()
  await until('the record to be corrected', () => eightBitsProblem(file) === null)
  assert.deepEqual(readEightBits(file)?.distance, distance)
})

test('where the disk is short no form is begun, and the card says how much is missing', async () => {
  const { file, make, isReplaced } = base('disk', { min_free: 1e15 })
  await make()
  assert.equal(isReplaced(), false)
  assert.match(eightBitsProblem(file)!, /^Its eight-bit form needs \d+ MB of free disk space, .* Free more: /)
  assert.deepEqual(
    readdirSync(folder).filter((name) => name.startsWith('disk')),
    ['disk.eight-bits.json', 'disk.gguf'],
  )
})

test('where both have room the form answers, and the card has no problem', async () => {
  const { file, make, isReplaced } = base('room', { measured: true })
  writeEightBitsRecord(file, {
    original_type: 'BF16',
    distance,
    problem: 'Its eight-bit form answers from the next load.',
  })
  await make()
  assert.equal(isReplaced(), true)
  assert.equal(eightBitsProblem(file), null)
  assert.deepEqual(readEightBits(file)?.distance, distance)
})
