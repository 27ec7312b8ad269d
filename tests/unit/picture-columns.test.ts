// The picture columns of tables, as Hugging Face's datasets write them, become pictures in the messages of rows,
// upright and without metadata; what cannot become one is an error of its row.
import assert from 'node:assert/strict'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { root } from '../../lib/root.ts'
import { readHeader } from '../../pictures/formats.ts'
import { readFileOf } from '../../server/features/datasets/prepare.ts'
import { rowMaker } from '../../server/features/datasets/reader/columns.ts'
import { embedPictures } from '../../server/features/datasets/reader/picture-columns.ts'
import { createPictureCheck } from '../../server/features/datasets/row-pictures.ts'
import { dataUrl, disk } from '../support/pictures.ts'

const pictures = createPictureCheck()
after(() => pictures.close())
const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-pictures-'))
after(() => rmSync(folder, { recursive: true }))

async function read(source: string, format: 'csv' | 'parquet' | 'huggingface', size: number) {
  const canonical = path.join(folder, 'rows.jsonl')
  const result = await readFileOf({ format, source, canonical, max_rows: 100, max_bytes: 1e9 }, size)
  if (!('check' in result)) throw new Error(JSON.stringify(result))
  const rows = readFileSync(canonical, 'utf8').trim().split('\n')
  return { check: result.check, rows: rows.map((row) => JSON.parse(row)) }
}
const fixture = (name: string) => path.join(root, 'tests/fixtures', name)

/** A message's content with what its pictures are. */
const shown = ({ content }: { content: unknown }) =>
  Array.isArray(content)
    ? content.map((part) => {
        if (part.type === 'text') return part.text
        const file = Buffer.from(part.image_url.url.split(',')[1], 'base64')
        assert.ok(!file.includes('Exif'))
        return Object.values(readHeader(file)).join(' ')
      })
    : content

test('parquet with an image column: before the question, turned as the file says, none where null', async () => {
  const { check, rows } = await read(fixture('pictures.parquet'), 'parquet', 6030)
  assert.deepEqual([check.errors, check.rows, check.pictures], [[], 3, 2])
  assert.deepEqual(
    rows.map(({ messages }) => messages.map(shown)),
    [
      [['jpeg 20 40', 'Colour?'], 'red'],
      ['2 + 2?', '4'],
      [['jpeg 20 40', 'Shape?'], 'none'],
    ],
  )
})

test('a group of rows with more pictures than the memory holds is refused with how to write it', async () => {
  const group = read(fixture('picture-group.parquet'), 'parquet', 6e6)
  await assert.rejects(group, /a group of 1 rows with more than 150 MB.*smaller row groups/)
})

test('a saved folder with an images column: in the places that the messages name, else before them', async () => {
  const { check, rows } = await read(fixture('pictures.zip'), 'huggingface', 1912)
  assert.deepEqual([check.errors, check.pictures], [[], 3])
  assert.deepEqual(
    rows.map(({ messages }) => shown(messages[0])),
    [
      ['jpeg 20 40', 'and', 'png 40 20', 'alike?'],
      ['png 40 20', 'Which colour?'],
    ],
  )
})

test('a CSV file with a picture column is refused with the formats that can hold pictures', async () => {
  const source = path.join(folder, 'rows.csv')
  writeFileSync(source, 'image,question,answer\ncat.png,What?,A cat\n')
  await assert.rejects(read(source, 'csv', 50), /column 'image', and CSV cannot hold pictures.*parquet/)
})

test('pictures of pairs go into their prompt; those without bytes or place are errors on what to do', async () => {
  const bytes = disk(8, 8, [255, 0, 0])
  const make = async (record: Record<string, unknown>) => {
    const uploaded = rowMaker(Object.keys(record))!(record)
    return Array.isArray(uploaded) ? uploaded : embedPictures(uploaded.row, pictures)
  }
  const picture = { type: 'image_url', image_url: { url: dataUrl(bytes) } }
  const asked = [{ role: 'user', content: [picture, { type: 'text', text: 'What?' }] }]
  assert.deepEqual(await make({ prompt: 'What?', chosen: 'a', rejected: 'b', images: [{ bytes, path: null }] }), {
    prompt: asked,
    chosen: 'a',
    rejected: 'b',
  })
  const talk = (answer: string) => [
    { role: 'user', content: 'What?' },
    { role: 'assistant', content: answer },
  ]
  assert.deepEqual(await make({ chosen: talk('a'), rejected: talk('b'), image: bytes }), {
    chosen: [...asked, talk('a')[1]],
    rejected: [...asked, talk('b')[1]],
  })
  const places = [{ role: 'user', content: [{ type: 'image' }, { type: 'image' }] }]
  const wrong: [Record<string, unknown>, string, RegExp][] = [
    [{ question: 'q', answer: 'a', image: { bytes: null, path: 'cat.png' } }, 'picture_invalid', /name of a file/],
    [{ question: 'q', answer: 'a', image: 'cat.png' }, 'picture_invalid', /name of a file/],
    [{ question: 'q', answer: 'a', images: [null] }, 'picture_invalid', /has no bytes/],
    [{ question: 'q', answer: 'a', image: { bytes: bytes.subarray(0, 60) } }, 'picture_invalid', /cannot be decoded/],
    [{ question: 'q', answer: 'a', images: Array(11).fill(bytes) }, 'too_many_pictures', /11/],
    [{ messages: places, images: [bytes] }, 'pictures_differ', /1 pictures in its column, and 2 parts/],
    [{ messages: places }, 'picture_invalid', /no picture for this part/],
    [{ messages: [{ role: 'assistant', content: 'a' }], image: bytes }, 'picture_misplaced', /no message of the user/],
  ]
  for (const [record, code, message] of wrong) {
    const problem = (await make(record)) as [string, string]
    assert.equal(problem[0], code, JSON.stringify(problem).slice(0, 200))
    assert.match(problem[1], message)
  }
})
