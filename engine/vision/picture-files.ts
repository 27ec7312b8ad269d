// Pictures in requests: data URLs.
import { ApiError } from '../../contract/errors.ts'
import { pictureBytesMax, pictureFormats, picturesMax } from '../../pictures/formats.ts'

/** Most characters of all pictures of a request. */
export const pictureTextMax = picturesMax * Math.ceil((pictureBytesMax * 4) / 3)

const head = new RegExp(`^data:image/(?:${pictureFormats.join('|')}|jpg);base64,`)

/** The bytes of a picture. Throws ApiError invalid_request; `param` is the request field of the URL. */
export function pictureFile(url: string, param: string): Buffer {
  const [found] = head.exec(url) ?? []
  if (found === undefined)
    throw new ApiError(
      'invalid_request',
      'Send the picture as a data URL: data:image/png;base64,… (or image/jpeg, image/webp, image/gif). ' +
        'The engine fetches nothing.',
      { param },
    )
  const file = Buffer.from(url.slice(found.length), 'base64')
  if (file.length === 0) throw new ApiError('invalid_request', 'The picture has no bytes in base64.', { param })
  return file
}
