// Pictures in requests and rows: data URLs, and addresses on the web.
import { PictureError, type PictureFormat, pictureFormats } from './formats.ts'

const head = new RegExp(`^data:image/(?:${pictureFormats.join('|')}|jpg);base64,`)

/** Whether a picture's URL is an address on the web, which is fetched where the operator allows it. */
export const isAddress = (url: string): boolean => /^https?:\/\//i.test(url)

/** A picture's bytes as a data URL. */
export const dataUrlOf = (format: PictureFormat, file: Uint8Array): string =>
  `data:image/${format};base64,${Buffer.from(file.buffer, file.byteOffset, file.length).toString('base64')}`

/** The bytes of a picture in a data URL. Throws PictureError. */
export function pictureFile(url: string): Buffer {
  const [found] = head.exec(url) ?? []
  if (found === undefined)
    throw new PictureError(
      'Send the picture as a data URL: data:image/png;base64,… (or image/jpeg, image/webp, image/gif). ' +
        'Nothing is fetched from other addresses.',
    )
  const file = Buffer.from(url.slice(found.length), 'base64')
  if (file.length === 0) throw new PictureError('The picture has no bytes in base64.')
  return file
}
