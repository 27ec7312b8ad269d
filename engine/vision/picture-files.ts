// Picture files in requests: data URLs, within the service's limits.
import { ApiError } from '../../contract/errors.ts'

export const picturesMax = 10
export const pictureBytesMax = 10_000_000

const dataUrl = /^data:image\/(?:png|jpeg|webp|gif);base64,/

/** The bytes of a picture. Throws ApiError invalid_request; `param` is the request field of the URL. */
export function pictureFile(url: string, param: string): Buffer {
  const [head] = dataUrl.exec(url) ?? []
  if (head === undefined)
    throw new ApiError(
      'invalid_request',
      'Send the picture as a data URL: data:image/png;base64,… (or image/jpeg, image/webp, image/gif). ' +
        'The engine fetches nothing.',
      { param },
    )
  // Four characters have three bytes.
  if (((url.length - head.length) / 4) * 3 > pictureBytesMax + 2)
    throw new ApiError('invalid_request', `The picture is larger than ${pictureBytesMax} bytes. Send a smaller one.`, {
      param,
    })
  const file = Buffer.from(url.slice(head.length), 'base64')
  if (file.length === 0) throw new ApiError('invalid_request', 'The picture has no bytes in base64.', { param })
  return file
}
