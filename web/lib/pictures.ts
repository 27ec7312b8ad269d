// Pictures that people give to models, as data URLs, within the bounds of requests.
import { formatBytes } from './format.ts'

/** The service's own bounds: of a request, and of a picture's file. */
const picturesMax = 10
const fileBytesMax = 10_000_000
const allBytesMax = 24_000_000

export const pictureTypes = 'image/png,image/jpeg,image/webp,image/gif'

/** A part of a message: a text or a picture. */
export type Part = { type: 'text'; text: string } | { type: 'image_url'; image_url: { url: string } }
export type Content = string | Part[]

/** What an `img` may show: never SVG, which is a document. */
const pictureUrl = /^data:image\/(?:jpe?g|png|webp|gif);base64,/

/** The pictures of a message's content, whatever that is. */
export const picturesOf = (content: unknown): string[] =>
  Array.isArray(content)
    ? content.flatMap((part) => {
        const url = Object(Object(part).image_url).url
        return typeof url === 'string' && pictureUrl.test(url) ? [url] : []
      })
    : []

/** The text of a message's content, without its pictures. */
export const textOf = (content: unknown): string =>
  typeof content === 'string'
    ? content
    : Array.isArray(content)
      ? content.map((part) => (part as { text?: string | undefined } | null)?.text ?? '').join('')
      : ''

/** A message's content: pictures before the text, as models are trained. */
export const contentOf = (text: string, pictures: readonly string[]): Content =>
  pictures.length === 0
    ? text
    : [
        ...pictures.map((url): Part => ({ type: 'image_url', image_url: { url } })),
        ...(text === '' ? [] : [{ type: 'text' as const, text }]),
      ]

const bytesOf = (url: string) => Math.floor(((url.length - url.indexOf(',')) * 3) / 4)

/** Adds files to pictures that go into one request. What cannot be added is said in `problem`, once for all. */
export async function withFiles(
  pictures: readonly string[],
  files: readonly File[],
): Promise<{ pictures: string[]; problem: string | undefined }> {
  const all = [...pictures]
  let problem: string | undefined
  for (const file of files) {
    const refused = await readPicture(file).then(
      (url) => {
        if (all.length === picturesMax) return `A conversation shows ${picturesMax} pictures at most.`
        if ([...all, url].reduce((sum, picture) => sum + bytesOf(picture), 0) > allBytesMax)
          return `All pictures of a conversation have ${formatBytes(allBytesMax)} at most.`
        all.push(url)
        return undefined
      },
      (error: Error) => error.message,
    )
    problem ??= refused
  }
  return { pictures: all, problem }
}

/** The type by the file's first bytes: its name may say anything. */
function typeOf(head: Uint8Array): string | undefined {
  const text = String.fromCharCode(...head)
  if (text.startsWith('\x89PNG\r\n')) return 'png'
  if (text.startsWith('\xff\xd8\xff')) return 'jpeg'
  if (text.startsWith('GIF8')) return 'gif'
  return text.startsWith('RIFF') && text.slice(8, 12) === 'WEBP' ? 'webp' : undefined
}

async function readPicture(file: File): Promise<string> {
  const name = file.name || 'The picture'
  if (file.size > fileBytesMax)
    throw new Error(`${name} has ${formatBytes(file.size)}; ${formatBytes(fileBytesMax)} is the most of a picture.`)
  const type = typeOf(new Uint8Array(await file.slice(0, 12).arrayBuffer()))
  if (!type) throw new Error(`${name} is not a PNG, JPEG, WEBP or GIF picture.`)
  return await new Promise((resolve, reject) => {
    const reader = new FileReader()
    reader.onerror = () => reject(new Error(`${name} cannot be read.`))
    reader.onload = () => resolve(`data:image/${type};base64,${String(reader.result).split(',')[1]}`)
    reader.readAsDataURL(file)
  })
}
