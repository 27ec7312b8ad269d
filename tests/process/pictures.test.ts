// Pictures of users: what is accepted is decoded as it looks, upright and without metadata; everything else is refused
// with what to do, and takes no process with it.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { after, test } from 'node:test'
import sharp from 'sharp'
import { createPictureDecoder } from '../../pictures/decoder.ts'
import { PictureError, readHeader } from '../../pictures/formats.ts'
import { until } from '../support/client.ts'
import { alive, children } from '../support/server.ts'

const decoder = createPictureDecoder()
after(() => decoder.close())

/** Red on the left, blue on the right. */
const twoColours = (width = 40, height = 20) =>
  sharp({ create: { width, height, channels: 3, background: '#ff0000' } }).composite([
    { input: { create: { width: width / 2, height, channels: 3, background: '#0000ff' } }, left: width / 2, top: 0 },
  ])
const pixel = ({ rgb, width }: { rgb: Uint8Array; width: number }, x: number, y: number) => [
  ...rgb.subarray((y * width + x) * 3, (y * width + x) * 3 + 3),
]
const near = (colour: number[], expected: number[]) =>
  colour.every((value, index) => Math.abs(value - expected[index]!) < 12)
const refused = (file: Buffer, why: RegExp) =>
  assert.rejects(decoder.decode(file), (error: Error) => error instanceof PictureError && why.test(error.message))

test('each format is decoded to its pixels, and its header says the size before', async () => {
  for (const format of ['jpeg', 'png', 'webp', 'gif'] as const) {
    const file = await twoColours().toFormat(format, { quality: 100 }).toBuffer()
    assert.deepEqual(readHeader(file), { format, width: 40, height: 20 })
    const picture = await decoder.decode(file)
    assert.deepEqual([picture.width, picture.height, picture.rgb.length], [40, 20, 40 * 20 * 3], format)
    assert.ok(near(pixel(picture, 5, 10), [255, 0, 0]) && near(pixel(picture, 35, 10), [0, 0, 255]), format)
  }
  const lossless = await twoColours().webp({ lossless: true }).toBuffer()
  assert.deepEqual(readHeader(lossless), { format: 'webp', width: 40, height: 20 })
  assert.deepEqual(pixel(await decoder.decode(lossless), 5, 10), [255, 0, 0])
})

test('orientation is applied, transparency is white, grey and 16 bits are RGB, a GIF is its first frame', async () => {
  const turned = await twoColours().withMetadata({ orientation: 6 }).jpeg({ quality: 100 }).toBuffer()
  const upright = await decoder.decode(turned)
  assert.deepEqual([upright.width, upright.height], [20, 40])
  assert.deepEqual(await decoder.measure(turned), { width: 20, height: 40 })
  assert.ok(near(pixel(upright, 10, 5), [255, 0, 0]) && near(pixel(upright, 10, 35), [0, 0, 255]))
  const clear = await sharp({
    create: { width: 4, height: 4, channels: 4, background: { r: 0, g: 0, b: 0, alpha: 0 } },
  })
    .png()
    .toBuffer()
  assert.deepEqual(pixel(await decoder.decode(clear), 1, 1), [255, 255, 255])
  const grey = await twoColours().toColourspace('b-w').png().toBuffer()
  assert.equal((await decoder.decode(grey)).rgb.length, 40 * 20 * 3)
  const deep = await twoColours().toColourspace('rgb16').png().toBuffer()
  assert.deepEqual(pixel(await decoder.decode(deep), 5, 10), [255, 0, 0])
  const frames = await Promise.all(
    ['#00ff00', '#ff00ff'].map((background) =>
      sharp({ create: { width: 8, height: 8, channels: 3, background } })
        .png()
        .toBuffer(),
    ),
  )
  const moving = await sharp(frames, { join: { animated: true } })
    .gif()
    .toBuffer()
  assert.deepEqual(pixel(await decoder.decode(moving), 4, 4), [0, 255, 0])
  const still = await decoder.normalize(moving)
  assert.deepEqual([still.format, still.same, still.width, still.height], ['png', false, 8, 8])
})

test('a kept picture has no metadata; one without any stays as it is, byte for byte', async () => {
  const plain = await twoColours().jpeg().toBuffer()
  const kept = await decoder.normalize(plain)
  assert.deepEqual([kept.same, kept.width, kept.height, kept.format], [true, 40, 20, 'jpeg'])
  assert.deepEqual(Buffer.from(kept.file), plain)
  const secret = 'GPS 52.5 N 13.4 E'
  for (const format of ['jpeg', 'png', 'webp'] as const) {
    const file = await twoColours()
      .withExif({ IFD0: { ImageDescription: secret } })
      .toFormat(format)
      .toBuffer()
    assert.ok(file.includes(secret))
    const clean = await decoder.normalize(file)
    assert.deepEqual([clean.format, clean.same], [format, false])
    assert.ok(!Buffer.from(clean.file).includes(secret))
    assert.deepEqual(readHeader(Buffer.from(clean.file)), { format, width: 40, height: 20 })
  }
})

test('what is no picture, or a damaged, huge or foreign one, is refused with what to do', async () => {
  const png = await twoColours(400, 300).png().toBuffer()
  const jpeg = await twoColours(400, 300).jpeg().toBuffer()
  await refused(Buffer.alloc(0), /not a JPEG, PNG, WEBP or GIF/)
  await refused(Buffer.from('<svg xmlns="http://www.w3.org/2000/svg"/>'), /not a JPEG/)
  await refused(await twoColours().tiff().toBuffer(), /not a JPEG/)
  await refused(png.subarray(0, 20), /cut off/)
  await refused(png.subarray(0, png.length / 2), /cannot be decoded/)
  await refused(jpeg.subarray(0, jpeg.length / 2), /cannot be decoded/)
  await refused(jpeg.subarray(0, 30), /cut off|damaged/)
  await refused(Buffer.alloc(10_000_001, 1), /10 MB is the most/)
  // Some kilobytes that say 60,000 x 60,000 pixels, in each format's own way.
  const bomb = Buffer.from(png)
  bomb.writeUInt32BE(60_000, 16)
  bomb.writeUInt32BE(60_000, 20)
  await refused(bomb, /60000 × 60000 pixels; 50 megapixels/)
  // The header is small, and the content is another format that sharp could read.
  const disguised = Buffer.concat([png.subarray(0, 33), Buffer.from('<svg width="9" height="9"/>')])
  await refused(disguised, /cannot be decoded/)
})

test('a picture that takes too long or too much memory ends its child alone, and the next one is decoded', async () => {
  const large = await sharp({ create: { width: 6000, height: 6000, channels: 3, background: '#123456' } })
    .png()
    .toBuffer()
  const hasty = createPictureDecoder({ time_ms: 1 })
  await assert.rejects(hasty.decode(large), /took more than/)
  hasty.close()
  const small = createPictureDecoder({ memory_mb: 60 })
  await assert.rejects(small.decode(large), /takes more than 60 MB/)
  small.close()
  const [pid] = children(process.pid, 'pictures/child.ts')
  const under = decoder.decode(large)
  await new Promise((resolve) => setImmediate(resolve))
  process.kill(pid!, 'SIGKILL')
  await assert.rejects(under, /ends the decoder/)
  assert.equal((await decoder.decode(await twoColours().png().toBuffer())).width, 40)
  const leaving = new AbortController()
  const left = decoder.decode(large, leaving.signal)
  leaving.abort(new Error('gone'))
  await assert.rejects(left, /gone/)
})

test('the child ends with its parent', async () => {
  const code = `import { createPictureDecoder } from './pictures/decoder.ts'
    const decoder = createPictureDecoder()
    await decoder.decode(Buffer.from('R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7', 'base64'))
    const { execFileSync } = await import('node:child_process')
    console.log(execFileSync('pgrep', ['-P', String(process.pid), '-f', 'pictures/child.ts'], { encoding: 'utf8' }))
    process.kill(process.pid, 'SIGKILL')`
  let output = ''
  try {
    execFileSync(process.execPath, ['--input-type=module-typescript', '-e', code], { encoding: 'utf8' })
  } catch (error) {
    output = (error as { stdout: string }).stdout
  }
  const pid = Number(output)
  assert.ok(pid > 0, output)
  await until('the child to end', () => !alive(pid))
})
