// Reads PNG files of 8 bits per channel: the pictures that this engine takes until the service's decoder is here.
import { promisify } from 'node:util'
import { inflate } from 'node:zlib'
import { ApiError } from '../../contract/errors.ts'
import type { PictureSize, Rgb } from '../llama/mtmd.ts'
import type { PictureReader } from './features.ts'

const signature = Buffer.from([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a])
const pixelsMax = 50_000_000
/** Bytes per pixel by the file's color type: RGB and RGBA. */
const channelsOf: Record<number, number> = { 2: 3, 6: 4 }
const unreadable = (why: string) => new ApiError('invalid_request', `The picture cannot be read: ${why}.`)

function headOf(file: Buffer): PictureSize & { channels: number } {
  if (file.length < 33 || !file.subarray(0, 8).equals(signature)) throw unreadable('it is not a PNG file')
  const [width, height] = [file.readUInt32BE(16), file.readUInt32BE(20)]
  const channels = channelsOf[file[25]!]
  if (width * height === 0 || width * height > pixelsMax)
    throw unreadable(`it has ${width} × ${height} pixels; ${pixelsMax} is the most`)
  if (file[24] !== 8 || channels === undefined || file[28] !== 0)
    throw unreadable('only RGB and RGBA with 8 bits, not interlaced, are read')
  return { width, height, channels }
}

export const pngReader: PictureReader = {
  sizeOf(file) {
    const { width, height } = headOf(file)
    return { width, height }
  },
  async decode(file): Promise<Rgb> {
    const { width, height, channels } = headOf(file)
    const parts: Buffer[] = []
    for (let at = 8; at + 12 <= file.length; ) {
      const length = file.readUInt32BE(at)
      if (file.toString('latin1', at + 4, at + 8) === 'IDAT') parts.push(file.subarray(at + 8, at + 8 + length))
      at += 12 + length
    }
    const stride = width * channels
    const rows = await promisify(inflate)(Buffer.concat(parts), { maxOutputLength: height * (stride + 1) }).catch(
      () => {
        throw unreadable('its pixels are damaged')
      },
    )
    if (rows.length !== height * (stride + 1)) throw unreadable('its pixels are cut off')
    const rgb = new Uint8Array(width * height * 3)
    let above: Uint8Array = new Uint8Array(stride)
    for (let y = 0; y < height; y++) {
      const from = y * (stride + 1)
      const row = rows.subarray(from + 1, from + 1 + stride)
      unfilter(row, above, rows[from]!, channels)
      for (let x = 0; x < width; x++)
        for (let channel = 0; channel < 3; channel++) {
          const value = row[x * channels + channel]!
          const alpha = channels === 4 ? row[x * 4 + 3]! / 255 : 1
          rgb[(y * width + x) * 3 + channel] = Math.round(value * alpha + 255 * (1 - alpha))
        }
      above = row
    }
    return { width, height, rgb }
  },
}

/** Adds to each byte what its filter predicts from the bytes to the left (a), above (b) and above left (c). */
function unfilter(row: Uint8Array, above: Uint8Array, filter: number, step: number): void {
  for (let at = 0; at < row.length; at++) {
    const a = at < step ? 0 : row[at - step]!
    const b = above[at]!
    const c = at < step ? 0 : above[at - step]!
    const predicted =
      filter === 1 ? a : filter === 2 ? b : filter === 3 ? (a + b) >> 1 : filter === 4 ? paeth(a, b, c) : 0
    row[at] = row[at]! + predicted
  }
}

function paeth(a: number, b: number, c: number): number {
  const [pa, pb, pc] = [Math.abs(b - c), Math.abs(a - c), Math.abs(a + b - 2 * c)]
  return pa <= pb && pa <= pc ? a : pb <= pc ? b : c
}
