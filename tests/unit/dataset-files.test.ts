// Dataset files are read whatever their bytes are: for any damage the error is a sentence for the sender of the file.
import assert from 'node:assert/strict'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { root } from '../../lib/root.ts'
import { createLineCounter } from '../../server/features/datasets/format.ts'
import { readFileOf } from '../../server/features/datasets/prepare.ts'
import { errorDetail } from '../../server/features/datasets/reader/columns.ts'
import { createListSplitter } from '../../server/features/datasets/reader/json-list.ts'

const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-damaged-'))
after(() => rmSync(folder, { recursive: true }))
const fixture = (name: string) => readFileSync(path.join(root, 'tests/fixtures', name))

/** The error for the file; undefined if it can be read, however odd its rows are. */
async function errorOf(bytes: Buffer, format: 'parquet' | 'huggingface'): Promise<string | undefined> {
  const source = path.join(folder, 'file')
  writeFileSync(source, bytes)
  const result = await readFileOf(
    { format, source, canonical: `${source}.part`, max_rows: 1000, max_bytes: 1e8 },
    bytes.length,
  )
  return 'unreadable' in result ? result.unreadable.message : undefined
}

/** The same bytes with some changed, by a seeded generator. */
function damaged(bytes: Buffer, from: number, to: number, seed: number): Buffer {
  const copy = Buffer.from(bytes)
  for (let state = seed * 2654435761, count = 0; count < 3; count++) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0
    copy[from + (state % (to - from))] = state >>> 24
  }
  return copy
}

test('a parquet file and a zip with damaged bytes are read, or refused with a message for users', async () => {
  const parquet = fixture('messages.parquet')
  const zip = fixture('one.zip')
  const footer = parquet.length - 8 - parquet.readUInt32LE(parquet.length - 8)
  for (let seed = 1; seed <= (process.env.TEST_FULL ? 8 : 2); seed++)
    for (const message of [
      await errorOf(damaged(parquet, footer, parquet.length - 8, seed), 'parquet'),
      await errorOf(damaged(zip, 0, zip.length, seed), 'huggingface'),
    ])
      if (message !== undefined) {
        assert.match(message, /^(The|An) .*\.$/s)
        assert.doesNotMatch(message, /undefined|null|not a function|BigInt|\bat \//)
      }
})

test("internal errors of a reader are not passed on; a library's messages about the file are", () => {
  const detailOf = (work: () => unknown) => {
    try {
      return work()
    } catch (error) {
      return errorDetail(error)
    }
  }
  assert.equal(
    detailOf(() => (undefined as unknown as { map: number }).map),
    '',
  )
  assert.equal(
    detailOf(() => (1n as unknown as number) + 1),
    '',
  )
  assert.equal(errorDetail(new Error("Cannot read properties of null (reading 'x')")), '')
  assert.equal(errorDetail(new Error('invalid distance too far back')), ': invalid distance too far back')
})

test('lines are counted and bad UTF-8 is found for any split into chunks', () => {
  const content = Buffer.from(`\uFEFF{"a":"é😀"}\r\n\n  \n{"b":1}\n\t\r\nlast`)
  const bad = Buffer.concat([Buffer.from('é\n😀\n'), Buffer.from([0xf0, 0x9f, 0x98]), Buffer.from('\n')])
  for (const size of [1, 2, 3, 5, 64]) {
    const counter = createLineCounter()
    for (let at = 0; at < content.length; at += size) counter.add(content.subarray(at, at + size))
    assert.deepEqual(counter.end(), { rows: 3 })
    const other = createLineCounter()
    for (let at = 0; at < bad.length; at += size) other.add(bad.subarray(at, at + size))
    assert.deepEqual(other.end(), { rows: 3, not_utf8_line: 3 }, `in pieces of ${size}`)
  }
})

test('a JSON list is split into the same lines for any split into chunks', () => {
  const content = Buffer.from('\uFEFF[ {"a": "],\\"é\n"},\n\n[1, {"b": [2]}] ,"x, y",7\n]\n')
  const expected = '{"a": "],\\"é\n"}\n[1, {"b": [2]}] \n"x, y"\n7 \n'
  for (const size of [1, 2, 3, 5, 64]) {
    const splitter = createListSplitter()
    let lines = ''
    for (let at = 0; at < content.length; at += size)
      lines += splitter.add(Buffer.from(content.subarray(at, at + size))).toString('latin1')
    assert.equal(Buffer.from(lines, 'latin1').toString(), expected, `in pieces of ${size}`)
    assert.deepEqual([1, 2, 3, 4].map(splitter.lineOf), [1, 4, 4, 4])
    assert.equal(splitter.problem(), undefined)
  }
})
