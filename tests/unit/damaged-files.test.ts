// Files of datasets with bytes that are wrong: whatever is wrong in them, what is said is a sentence for whoever sent
// the file.
import assert from 'node:assert/strict'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { root } from '../../lib/root.ts'
import { because } from '../../server/datasets/reader/columns.ts'
import { readFileOf } from '../../server/datasets/reader.ts'

const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-damaged-'))
after(() => rmSync(folder, { recursive: true }))
const fixture = (name: string) => readFileSync(path.join(root, 'tests/fixtures', name))

/** What is said of it; undefined where it can be read, however odd its rows are. */
async function saidOf(bytes: Buffer, format: 'parquet' | 'huggingface'): Promise<string | undefined> {
  const source = path.join(folder, 'file')
  writeFileSync(source, bytes)
  const result = await readFileOf(
    { format, source, canonical: `${source}.part`, max_rows: 1000, max_bytes: 1e8 },
    bytes.length,
  )
  return 'unreadable' in result ? result.unreadable.message : undefined
}

/** The same bytes but for some, by a generator that always makes the same. */
function damaged(bytes: Buffer, from: number, to: number, seed: number): Buffer {
  const made = Buffer.from(bytes)
  for (let state = seed * 2654435761, count = 0; count < 3; count++) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0
    made[from + (state % (to - from))] = state >>> 24
  }
  return made
}

test('a parquet footer and a zip with some wrong bytes are read, or refused in words that are no program’s', async () => {
  const parquet = fixture('messages.parquet')
  const zip = fixture('one.zip')
  const footer = parquet.length - 8 - parquet.readUInt32LE(parquet.length - 8)
  for (let seed = 1; seed <= 8; seed++)
    for (const said of [
      await saidOf(damaged(parquet, footer, parquet.length - 8, seed), 'parquet'),
      await saidOf(damaged(zip, 0, zip.length, seed), 'huggingface'),
    ])
      if (said !== undefined) {
        assert.match(said, /^(The|An) .*\.$/s)
        assert.doesNotMatch(said, /undefined|null|not a function|BigInt|\bat \//)
      }
})

test('what a reader stumbles over is not passed on; what a library says of the file is', () => {
  const stumble = (work: () => unknown) => {
    try {
      return work()
    } catch (error) {
      return because(error)
    }
  }
  assert.equal(
    stumble(() => (undefined as unknown as { map: number }).map),
    '',
  )
  assert.equal(
    stumble(() => (1n as unknown as number) + 1),
    '',
  )
  assert.equal(because(new Error("Cannot read properties of null (reading 'x')")), '')
  assert.equal(because(new Error('invalid distance too far back')), ': invalid distance too far back')
})
