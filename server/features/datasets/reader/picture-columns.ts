// Pictures of tables: the columns `image` and `images` beside the others, as Hugging Face's datasets have them.
import { PictureError, picturesMax } from '../../../../pictures/formats.ts'
import type { PictureCheck, PicturePart } from '../row-pictures.ts'
import type { Problem } from '../row-problem.ts'

export const pictureColumns = ['image', 'images']

type Fields = Record<string, unknown>
interface Message {
  role?: unknown
  content?: unknown
}
/** A part in whose place a picture of the row's columns is to be; with `image` once it is known which. */
interface ImagePart {
  type: 'image'
  image?: unknown
}

const isImagePart = (part: unknown): part is ImagePart => Object(part).type === 'image'
const partsOf = (message: unknown): unknown[] => {
  const { content } = Object(message) as Message
  return Array.isArray(content) ? content : []
}

/** The lists of messages that may have pictures, by their fields. Of a pair without a prompt, both conversations. */
const promptsOf = ({ messages, prompt, chosen, rejected }: Fields): [string, unknown[]][] =>
  Object.entries({ messages, prompt, ...(prompt === undefined && { chosen, rejected }) }).filter(
    (entry): entry is [string, unknown[]] => Array.isArray(entry[1]),
  )

/**
 * Puts the pictures of a table's row where its messages have parts `{"type":"image"}`, in order; without any such part,
 * before the first text of the user, as TRL does.
 */
export function placePictures(row: Fields, record: Fields): Fields | Problem {
  const images = imagesOf(record)
  if (images.length === 0) return row
  if (images.length > picturesMax)
    return ['too_many_pictures', `has ${images.length} pictures; ${picturesMax} is the most of a row. Divide it.`]
  const placed: Fields =
    typeof row.prompt === 'string' ? { ...row, prompt: [{ role: 'user', content: row.prompt }] } : { ...row }
  for (const [field, messages] of promptsOf(placed)) {
    const places = messages.flatMap(partsOf).filter((part) => isImagePart(part) && part.image === undefined).length
    if (places > 0 && places !== images.length)
      return [
        'pictures_differ',
        `has ${images.length} pictures in its column, and ${places} parts of '${field}' for them. Write one part ` +
          '{"type":"image"} for each.',
      ]
    const left = [...images]
    if (places > 0) placed[field] = messages.map((message) => filled(message, left))
    else {
      const first = messages.findIndex((message) => Object(message).role === 'user')
      if (first < 0)
        return ['picture_misplaced', `has pictures, and no message of the user in '${field}' that could show them.`]
      placed[field] = messages.with(first, opened(messages[first] as Message, images))
    }
  }
  return placed
}

function imagesOf({ images, image }: Fields): unknown[] {
  const many = Array.isArray(images) ? images : images == null ? [] : [images]
  return many.length > 0 || image == null ? many : [image]
}

const filled = (message: unknown, left: unknown[]) =>
  partsOf(message).some(isImagePart)
    ? {
        ...(message as Message),
        content: partsOf(message).map((part) =>
          isImagePart(part) && part.image === undefined ? { type: 'image', image: left.shift() } : part,
        ),
      }
    : message

const opened = (message: Message, images: unknown[]) => ({
  ...message,
  content: [
    ...images.map((image) => ({ type: 'image', image })),
    ...(typeof message.content === 'string' ? [{ type: 'text', text: message.content }] : partsOf(message)),
  ],
})

/** Whether placed pictures are to be embedded. */
export const hasPlacedPictures = (row: Fields): boolean =>
  promptsOf(row).some(([, messages]) => messages.some((message) => partsOf(message).some(isImagePart)))

/** Replaces placed pictures by data URLs of files without metadata, upright. */
export async function embedPictures(row: Fields, pictures: PictureCheck): Promise<Fields | Problem> {
  const embedded: Fields = { ...row }
  for (const [field, messages] of promptsOf(row)) {
    const list = [...messages]
    embedded[field] = list
    for (const [index, message] of messages.entries()) {
      if (!partsOf(message).some(isImagePart)) continue
      const content = [...partsOf(message)]
      list[index] = { ...(message as Message), content }
      for (const [number, part] of content.entries()) {
        if (!isImagePart(part)) continue
        const at = `: ${field}[${index}].content[${number}]`
        try {
          content[number] = await embed(part.image, pictures)
        } catch (error) {
          if (error instanceof PictureError) return ['picture_invalid', `${at}: ${error.message}`]
          throw error
        }
      }
    }
  }
  return embedded
}

/** A cell of a picture column as a part of a message. Throws PictureError. */
async function embed(image: unknown, pictures: PictureCheck): Promise<PicturePart> {
  const { bytes = image, path } = Object(image) as { bytes?: unknown; path?: unknown }
  if (ArrayBuffer.isView(bytes))
    return picturePart(await pictures.normalized(Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength)))
  // A data URL or an address, which are checked as those of rows are.
  if (typeof bytes === 'string' && /^[a-z][a-z+.-]*:/i.test(bytes)) return picturePart(bytes)
  if (image === undefined)
    throw new PictureError(
      'There is no picture for this part. Give the table a column `image` or `images`, or write the part as ' +
        '{"type":"image_url","image_url":{"url":"data:image/png;base64,…"}}.',
    )
  if (typeof path === 'string' || typeof bytes === 'string')
    throw new PictureError(
      'The picture is the name of a file, which is not in the table. Embed its bytes: cast the column to ' +
        '`datasets.Image()` and write the dataset again (`to_parquet`, `push_to_hub` or `save_to_disk`).',
    )
  throw new PictureError('The picture has no bytes. Write it as {"bytes": …}, as `datasets.Image()` does.')
}

const picturePart = (url: string): PicturePart => ({ type: 'image_url', image_url: { url } })
