// Pictures of rows: those of the user that can be decoded are taken; of each other kind the row's line is told, and
// what to do, never the data.
import assert from 'node:assert/strict'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { test } from 'node:test'
import sharp from 'sharp'
import { dataUrlOf } from '../../pictures/data-urls.ts'
import { createRowChecker } from '../../server/features/datasets/check-rows.ts'
import { readItems, requestOf } from '../../server/features/evaluations/items.ts'
import { dataUrl, disk } from '../support/pictures.ts'

const png = disk(40, 30, [255, 0, 0])
const picture = (url: string, more: object = {}) => ({ type: 'image_url', image_url: { url, ...more } })
const text = { type: 'text', text: 'What is it?' }
const answer = { role: 'assistant', content: 'A disk.' }
const asked = (...content: object[]) => [{ role: 'user', content }]
const row = (...content: object[]) => ({ messages: [...asked(...content), answer] })

async function check(...rows: (object | string)[]) {
  const checker = createRowChecker()
  await checker.add(Buffer.from(rows.map((row) => `${typeof row === 'string' ? row : JSON.stringify(row)}\n`).join('')))
  return checker.end()
}

test('pictures of the user are taken, in conversations, pairs and rated answers, and counted', async () => {
  const [jpeg, webp, gif] = await Promise.all(
    (['jpeg', 'webp', 'gif'] as const).map(async (format) =>
      dataUrlOf(format, await sharp(png).toFormat(format).toBuffer()),
    ),
  )
  const talk = await check(
    row(picture(dataUrl(png), { detail: 'low' }), text),
    row(picture(jpeg!.replace('image/jpeg', 'image/jpg')), picture(webp!), picture(gif!)),
    row(text),
  )
  assert.deepEqual([talk.errors, talk.warnings, talk.pictures], [[], [], 4])
  const prompt = asked(picture(dataUrl(png)), text)
  const pairs = await check(
    { prompt, chosen: 'A disk.', rejected: 'A square.' },
    { chosen: [...prompt, answer], rejected: [...prompt, { ...answer, content: 'A box.' }] },
    { input: { messages: prompt }, preferred_output: [answer], non_preferred_output: [{ ...answer, content: 'No.' }] },
  )
  assert.deepEqual([pairs.errors, pairs.objectives, pairs.pictures], [[], ['dpo'], 3])
  assert.deepEqual((await check({ prompt, completion: 'A disk.', label: true })).pictures, 1)
})

test('a bad picture is an error of its line that says what to do, without its data', async () => {
  const base64 = png.toString('base64')
  const bomb = Buffer.from(png)
  bomb.writeUInt32BE(60_000, 16)
  bomb.writeUInt32BE(60_000, 20)
  const svg = Buffer.from('<svg xmlns="http://www.w3.org/2000/svg"/>')
  const tiff = await sharp(png).tiff().toBuffer()
  const cut = png.subarray(0, png.length / 2)
  const inRole = (role: string) => ({
    messages: [{ role: 'user', content: 'Hi' }, { role, content: [text, picture(dataUrl(png))] }, answer],
  })
  const kinds: [object, string, RegExp][] = [
    [row(picture('https://example.com/cat.png')), 'picture_remote', /nothing is fetched.*data URL/],
    [row(picture('file:///etc/passwd')), 'picture_remote', /data URL/],
    [row(picture('cat.png')), 'picture_invalid', /must be a data URL/],
    [row(picture(`data:text/html;base64,${base64}`)), 'picture_invalid', /must be a data URL/],
    [row(picture(`data:image/svg+xml;base64,${svg.toString('base64')}`)), 'picture_invalid', /Convert it/],
    [row(picture(`data:image/tiff;base64,${tiff.toString('base64')}`)), 'picture_invalid', /Convert it/],
    [row(picture(dataUrl(svg))), 'picture_invalid', /not a JPEG, PNG, WEBP or GIF/],
    [row(picture(dataUrl(tiff))), 'picture_invalid', /not a JPEG, PNG, WEBP or GIF/],
    [row(picture(`data:image/jpeg;base64,${base64}`)), 'picture_invalid', /says image\/jpeg .* image\/png/],
    [row(picture('data:image/png;base64,')), 'picture_invalid', /base64/],
    [row(picture(dataUrl(png).slice(0, -1))), 'picture_invalid', /cut off/],
    [row(picture(dataUrl(png).replace('AAA', 'A\nA'))), 'picture_invalid', /without line breaks/],
    [row(picture(dataUrl(bomb))), 'picture_invalid', /60000 × 60000 pixels; 50 megapixels/],
    [row(picture(dataUrl(cut))), 'picture_invalid', /cannot be decoded/],
    [row(picture(dataUrl(Buffer.alloc(10_000_001, 1)))), 'picture_invalid', /10 MB is the most/],
    [row(picture(dataUrl(png), { detail: 'best' })), 'picture_invalid', /auto, low, high/],
    [row({ type: 'image_url', image_url: dataUrl(png) }), 'picture_invalid', /must be like/],
    [row({ type: 'image' }), 'content_not_text', /image_url/],
    [row(...Array.from({ length: 11 }, () => picture(dataUrl(png)))), 'too_many_pictures', /11 pictures; 10/],
    [inRole('assistant'), 'picture_misplaced', /role assistant/],
    [inRole('system'), 'picture_misplaced', /role system/],
    [{ prompt: 'hi', chosen: [inRole('assistant').messages[1]], rejected: 'x' }, 'picture_misplaced', /assistant/],
  ]
  for (const [bad, code, message] of kinds) {
    const { error_count, issues, errors } = await check(bad)
    assert.deepEqual([error_count, issues[0]?.code], [1, code], errors[0] ?? JSON.stringify(bad).slice(0, 100))
    assert.match(errors[0]!, message)
    assert.ok(errors[0]!.length < 300 && !errors[0]!.includes(base64.slice(0, 40)), errors[0])
  }
})

test('a row with pictures may be longer than one of text, up to a bound', async () => {
  // Few pixels, and bytes that nothing reads behind the end of the picture.
  const url = dataUrl(Buffer.concat([png, Buffer.alloc(7_000_000)]))
  const { errors, pictures } = await check(
    row(picture(url), picture(url)),
    row(picture(url), picture(url), picture(url), picture(url)),
  )
  assert.equal(pictures, 2)
  assert.deepEqual(errors, [
    'line 2 is longer than 16 MB, or 32 MB with pictures. Split the example, shorten its text, or make its pictures ' +
      'smaller.',
  ])
})

test('rows are alike only if their pictures are', async () => {
  const other = dataUrl(disk(40, 30, [0, 0, 255]))
  const { duplicates, conflicts } = await check(
    row(picture(dataUrl(png)), text),
    row(picture(other), text),
    row(picture(dataUrl(png)), text),
    { messages: [...asked(picture(other), text), { ...answer, content: 'A ball.' }] },
  )
  assert.deepEqual([duplicates, conflicts], [1, 1])
})

test('what is no picture of the row’s kind is not looked at', async () => {
  const odd = [null, { content: [null, { type: 'image_url' }] }]
  assert.equal((await check({ ...row(text), prompt: odd, input: { messages: odd } })).error_count, 0)
})

test('an evaluation shows models the pictures, and gives graders and stored answers only their hashes', async () => {
  const file = path.join(mkdtempSync(path.join(os.tmpdir(), 'tunery-items-')), 'rows.jsonl')
  const pictured = picture(dataUrl(Buffer.concat([png, Buffer.alloc(1_000_000)])))
  writeFileSync(file, `${JSON.stringify(row(pictured, text))}\n`)
  for await (const item of readItems({ path: file, canonical: false }, new Set([1]))) {
    const stored = JSON.stringify(item.item)
    assert.ok(stored.length < 500 && !stored.includes('base64'), stored.slice(0, 500))
    for (const template of [undefined, { item_reference: 'item.messages' }])
      assert.deepEqual((requestOf(item, template).messages[0] as { content: unknown }).content, [pictured, text])
    const quoted = requestOf(item, [{ role: 'user', content: '{{item.messages}}' }])
    assert.ok(!JSON.stringify(quoted).includes('base64'))
  }
  rmSync(path.dirname(file), { recursive: true })
})
