// The process that decodes pictures of users: nothing but sharp, which it may bring down.
import sharp, { type Sharp } from 'sharp'
import { dieWithParent } from '../lib/child-process.ts'
import type {
  DecodedPicture,
  DecodeRequest,
  DecodeResponse,
  DecodeResults,
  NormalizedPicture,
  PictureSize,
} from './decoder-messages.ts'
import { picturePixelsMax, readHeader } from './formats.ts'

dieWithParent()
sharp.cache(false)
sharp.concurrency(1)
// Every other format's reader stays shut, whatever the file claims to be.
sharp.block({ operation: ['VipsForeignLoad'] })
sharp.unblock({
  operation: [
    'VipsForeignLoadJpegBuffer',
    'VipsForeignLoadPngBuffer',
    'VipsForeignLoadWebpBuffer',
    'VipsForeignLoadNsgifBuffer',
  ],
})

/** The first frame, upright. Whatever is damaged is an error: a model would be taught grey areas. */
const open = (file: Uint8Array): Sharp =>
  sharp(file, { limitInputPixels: picturePixelsMax, failOn: 'warning', pages: 1 }).autoOrient()

async function decode(file: Uint8Array): Promise<DecodedPicture> {
  const { data, info } = await open(file)
    .flatten({ background: '#ffffff' })
    .toColourspace('srgb')
    .removeAlpha()
    .raw({ depth: 'uchar' })
    .toBuffer({ resolveWithObject: true })
  return { width: info.width, height: info.height, rgb: data }
}

const metadataOf = (file: Uint8Array) => sharp(file, { limitInputPixels: picturePixelsMax }).metadata()

/** Formats of kept pictures, and how one is re-encoded. */
const encoders = {
  jpeg: (picture: Sharp) => picture.jpeg({ quality: 95, chromaSubsampling: '4:4:4' }),
  webp: (picture: Sharp) => picture.webp({ quality: 95 }),
  png: (picture: Sharp) => picture.png(),
}

async function normalize(file: Uint8Array): Promise<NormalizedPicture> {
  const { format } = readHeader(Buffer.from(file.buffer, file.byteOffset, file.length))
  const about = await metadataOf(file)
  const hasMore = about.exif || about.icc || about.iptc || about.xmp || about.comments || (about.pages ?? 1) > 1
  if (!hasMore && (about.orientation ?? 1) === 1 && format !== 'gif') {
    const { width, height } = await decode(file)
    return { width, height, format, file, same: true }
  }
  const kept = format === 'gif' ? 'png' : format
  const picture = encoders[kept](open(file).toColourspace('srgb'))
  const { data, info } = await picture.toBuffer({ resolveWithObject: true })
  return { width: info.width, height: info.height, format: kept, file: data, same: false }
}

async function measure(file: Uint8Array): Promise<PictureSize> {
  const { width, height } = (await metadataOf(file)).autoOrient
  return { width, height }
}

async function check(file: Uint8Array): Promise<PictureSize> {
  const { width, height } = await decode(file)
  return { width, height }
}

const works: { [Work in keyof DecodeResults]: (file: Uint8Array) => Promise<DecodeResults[Work]> } = {
  measure,
  check,
  decode,
  normalize,
}

process.on('message', async ({ id, work, file }: DecodeRequest) => {
  const answer = (response: DecodeResponse) => process.send!(response)
  try {
    answer({ id, result: await works[work](file) })
  } catch (error) {
    // The first of many lines says what is wrong.
    answer({ id, refused: (error as Error).message.split('\n')[0]!.slice(0, 200) })
  }
})
