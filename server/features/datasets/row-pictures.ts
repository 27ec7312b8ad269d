// Pictures of rows: data URLs in the content parts of messages, what can be wrong with them, and their decoding.
import { hash } from 'node:crypto'
import { dataUrlOf, pictureFile } from '../../../pictures/data-urls.ts'
import { createPictureDecoder } from '../../../pictures/decoder.ts'
import { PictureError, type PictureFormat, pictureFormats, readHeader } from '../../../pictures/formats.ts'
import type { Problem } from './row-problem.ts'

/** A content part with a picture, as OpenAI writes it. In a valid row the URL is a data URL. */
export interface PicturePart {
  type: 'image_url'
  image_url: { url: string; detail?: string }
}

/** A picture of a row: its place in it, for messages, and its data URL. */
export interface PlacedPicture {
  at: string
  url: string
}

export const isPicture = (part: unknown): part is PicturePart =>
  (part as { type?: unknown } | null | undefined)?.type === 'image_url'

const dataUrlHead = /^data:image\/([a-z0-9.+-]{1,40});base64,/
const details = ['auto', 'low', 'high']
const formatOf = (subtype: string) => (subtype === 'jpg' ? 'jpeg' : subtype)

/** The format that a data URL names: jpeg, png, webp or gif. */
export const formatOfUrl = (url: string): string => formatOf(dataUrlHead.exec(url)?.[1] ?? '')

/** The problem of a part that its text and the header of its file tell. Messages never repeat the data. */
export function pictureProblem(part: unknown): Problem | undefined {
  const { url, detail } = Object((part as { image_url?: unknown }).image_url)
  const invalid = (message: string): Problem => ['picture_invalid', message]
  if (typeof url !== 'string') return invalid('.image_url must be like {"url":"data:image/png;base64,…"}.')
  if (detail !== undefined && !details.includes(detail as string))
    return invalid(`.image_url.detail must be one of ${details.join(', ')}.`)
  const [head, subtype] = dataUrlHead.exec(url) ?? []
  if (/^[a-z][a-z+.-]*:\/\//i.test(url))
    return [
      'picture_remote',
      '.image_url.url is an address, and nothing is fetched from there. Write the picture itself into the row, as a ' +
        'data URL: data:image/png;base64,…',
    ]
  if (head === undefined)
    return invalid('.image_url.url must be a data URL: data:image/png;base64,… (or image/jpeg, image/webp, image/gif).')
  const named = formatOf(subtype!)
  if (!pictureFormats.includes(named as PictureFormat))
    return invalid('.image_url.url has a picture that is no JPEG, PNG, WEBP or GIF. Convert it to one of these.')
  const data = url.slice(head.length)
  // Padded, in the standard alphabet: what every decoder reads alike.
  if (data === '' || data.length % 4 !== 0 || /[^A-Za-z0-9+/]/.test(data.replace(/={1,2}$/, '')))
    return invalid(
      '.image_url.url is not well-formed base64: it is cut off, or has characters other than A-Z, a-z, 0-9, + and /. ' +
        'Encode the whole file again, without line breaks.',
    )
  try {
    const { format } = readHeader(pictureFile(url))
    return format === named
      ? undefined
      : invalid(`.image_url.url says image/${subtype} and has a picture of the type image/${format}. Correct its type.`)
  } catch (error) {
    return notAPicture('', error)
  }
}

function notAPicture(at: string, error: unknown): Problem {
  if (error instanceof PictureError) return ['picture_invalid', `${at}: ${error.message}`]
  throw error
}

/** A row as JSON with the hash of each picture in the place of its data, and without other binary values. */
export const withoutPictures = (row: object): string =>
  JSON.stringify(row, (key, value) => {
    if (typeof value === 'bigint') return Number(value)
    if (ArrayBuffer.isView(value)) return undefined
    return key === 'url' && typeof value === 'string' && dataUrlHead.test(value) ? hash('sha256', value) : value
  })

/** Decodes the pictures of a dataset's rows, each distinct one once, in a child process of bounded time and memory. */
export interface PictureCheck {
  /** The first of a row's pictures that cannot be decoded. */
  problemOf(pictures: PlacedPicture[]): Promise<Problem | undefined>
  /** A picture without metadata, upright, as a data URL. Throws PictureError. */
  normalized(file: Buffer): Promise<string>
  /** Ends the child process. */
  close(): void
}

export function createPictureCheck(): PictureCheck {
  const decoder = createPictureDecoder()
  const good = new Set<string>()
  /** Those that are normal as they are. */
  const normal = new Set<string>()
  /** The last ones that had to be changed, by the hash of the original: tables often repeat a picture row after row. */
  const changed = new Map<string, string>()
  return {
    async problemOf(pictures) {
      for (const { at, url } of pictures) {
        try {
          const file = pictureFile(url)
          const digest = digestOf(file)
          if (good.has(digest)) continue
          await decoder.check(file)
          good.add(digest)
        } catch (error) {
          return notAPicture(`: ${at}`, error)
        }
      }
      return undefined
    },
    async normalized(file) {
      const { format } = readHeader(file)
      const digest = digestOf(file)
      const cleaned = normal.has(digest) ? dataUrlOf(format, file) : changed.get(digest)
      if (cleaned) return cleaned
      const picture = await decoder.normalize(file)
      const kept = Buffer.from(picture.file)
      good.add(digestOf(kept))
      const url = dataUrlOf(picture.format, kept)
      if (picture.same) normal.add(digest)
      else changed.set(digest, url)
      if (changed.size > changedMax) changed.delete(changed.keys().next().value!)
      return url
    },
    close: decoder.close,
  }
}

/** 10 pictures of 10 MB at most, as base64. */
const changedMax = 10

/** 32 characters of one byte each. */
const digestOf = (file: Buffer) => hash('sha256', file, 'latin1' as 'hex')
