// What a picture may be, and what its header says.

/** Most bytes of a picture's file. */
export const pictureBytesMax = 10_000_000
/** Most pixels of a picture. */
export const picturePixelsMax = 50_000_000
/** Most pictures of a row or a request. */
export const picturesMax = 10

export const pictureFormats = ['jpeg', 'png', 'webp', 'gif'] as const
export type PictureFormat = (typeof pictureFormats)[number]

/** A picture that is refused; the message says why and what to do. */
export class PictureError extends Error {}

/** `width` and `height` in pixels, as the file stores them: an orientation that it names is not applied. */
interface PictureHeader {
  format: PictureFormat
  width: number
  height: number
}

/** Reads format and size from a picture's header, without decoding it. Throws PictureError for what is not accepted. */
export function readHeader(file: Buffer): PictureHeader {
  if (file.length > pictureBytesMax)
    throw new PictureError(
      `The picture has ${megabytes(file.length)} MB; ${megabytes(pictureBytesMax)} MB is the most. Send a smaller one.`,
    )
  let header: PictureHeader | undefined
  try {
    header = pngHeader(file) ?? gifHeader(file) ?? webpHeader(file) ?? jpegHeader(file)
  } catch (error) {
    if (!(error instanceof RangeError)) throw error
    throw new PictureError('The picture is cut off within its header. Send the whole file.')
  }
  if (!header) throw new PictureError('The file is not a JPEG, PNG, WEBP or GIF picture.')
  const { width, height } = header
  if (width === 0 || height === 0) throw new PictureError('The picture has no pixels.')
  if (width * height > picturePixelsMax)
    throw new PictureError(
      `The picture has ${width} × ${height} pixels; ${picturePixelsMax / 1e6} megapixels is the most. Send a smaller ` +
        'one.',
    )
  return header
}

const megabytes = (bytes: number) => (bytes / 1e6).toFixed(1).replace(/\.0$/, '')
const hasText = (file: Buffer, at: number, text: string) => file.toString('latin1', at, at + text.length) === text

function pngHeader(file: Buffer): PictureHeader | undefined {
  if (!hasText(file, 0, '\x89PNG\r\n\x1a\n')) return undefined
  return { format: 'png', width: file.readUInt32BE(16), height: file.readUInt32BE(20) }
}

function gifHeader(file: Buffer): PictureHeader | undefined {
  if (!hasText(file, 0, 'GIF87a') && !hasText(file, 0, 'GIF89a')) return undefined
  return { format: 'gif', width: file.readUInt16LE(6), height: file.readUInt16LE(8) }
}

/** https://developers.google.com/speed/webp/docs/riff_container */
function webpHeader(file: Buffer): PictureHeader | undefined {
  if (!hasText(file, 0, 'RIFF') || !hasText(file, 8, 'WEBP')) return undefined
  const format = 'webp'
  const kind = file.toString('latin1', 12, 16)
  if (kind === 'VP8X') return { format, width: 1 + file.readUIntLE(24, 3), height: 1 + file.readUIntLE(27, 3) }
  if (kind === 'VP8 ') return { format, width: file.readUInt16LE(26) & 0x3fff, height: file.readUInt16LE(28) & 0x3fff }
  if (kind !== 'VP8L') return undefined
  const bits = file.readUInt32LE(21)
  return { format, width: 1 + (bits & 0x3fff), height: 1 + ((bits >>> 14) & 0x3fff) }
}

/** The size stands in the frame header, behind segments of any number; each has its length. */
function jpegHeader(file: Buffer): PictureHeader | undefined {
  if (!hasText(file, 0, '\xff\xd8\xff')) return undefined
  for (let at = 2; ; ) {
    if (file.readUInt8(at) !== 0xff) throw new PictureError('The JPEG picture is damaged before its frame header.')
    const marker = file.readUInt8(at + 1)
    // Fill bytes may precede a marker.
    if (marker === 0xff) at++
    else if (marker >= 0xc0 && marker <= 0xcf && ![0xc4, 0xc8, 0xcc].includes(marker))
      return { format: 'jpeg', width: file.readUInt16BE(at + 7), height: file.readUInt16BE(at + 5) }
    else at += 2 + Math.max(2, file.readUInt16BE(at + 2))
  }
}
