// Pages of a dataset's rows: right from any row on, and read without the rows before them once these were read.
import assert from 'node:assert/strict'
import { closeSync, mkdtempSync, openSync, rmSync, writeFileSync, writeSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { createRowReader } from '../../server/features/datasets/row-reader.ts'

const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-rows-'))
after(() => rmSync(folder, { recursive: true }))

const count = 5300
/** Texts of several bytes a character, blank lines, CRLF, a byte order mark, and no line feed at the end. */
const lines = Array.from({ length: count }, (_, index) => {
  const json = JSON.stringify({ n: index + 1, text: 'ä€\u{1F600}\u2028'.repeat(index % 5) })
  return `${index % 7 === 0 ? '\n \r\n' : ''}${json}${index % 3 === 0 ? '\r' : ''}`
})
const file = path.join(folder, 'rows.jsonl')
writeFileSync(file, `\uFEFF${lines.join('\n')}`)

async function page(rows: ReturnType<typeof createRowReader>, first: number, length = 3, id = 'ds_1') {
  const read: [row: number, n: number, line: number][] = []
  for await (const { row, line, json } of rows.from(id, file, first)) {
    read.push([row, JSON.parse(json).n, line])
    if (read.length === length) break
  }
  return read
}

test('a page is the same from any row on, whatever was read before', async () => {
  const whole = await page(createRowReader(), 1, count)
  assert.equal(whole.length, count)
  assert.ok(whole.every(([row, n]) => row === n))
  const rows = createRowReader()
  for (const first of [1, 4990, 2001, 2000, 1001, 999, 5299, 3500, 1, 5300])
    assert.deepEqual(await page(rows, first), whole.slice(first - 1, first + 2), `from ${first}`)
  assert.deepEqual(await page(rows, count + 1), [])
})

test('a page that was read once is read again without the rows before it', async () => {
  const rows = createRowReader()
  const first = await page(rows, 5200)
  const fd = openSync(file, 'r+')
  // The first rows are no rows any more.
  writeSync(fd, '#'.repeat(1000), 100)
  closeSync(fd)
  assert.deepEqual(await page(rows, 5200), first)
  assert.notDeepEqual(await page(createRowReader(), 5200), first, 'another reader has to read them')
})
