// Pictures in requests: data URLs.
import { ApiError } from '../../contract/errors.ts'
import { pictureFile as fileOf } from '../../pictures/data-urls.ts'
import { PictureError, pictureBytesMax, picturesMax } from '../../pictures/formats.ts'

/** Most characters of all pictures of a request. */
export const pictureTextMax = picturesMax * Math.ceil((pictureBytesMax * 4) / 3)

/** The bytes of a picture. Throws ApiError invalid_request; `param` is the request field of the URL. */
export function pictureFile(url: string, param: string): Buffer {
  try {
    return fileOf(url)
  } catch (error) {
    throw withParam(error, param)
  }
}

/** Adds to an error which picture it is about. */
export function atPicture<T>(param: string, work: Promise<T>): Promise<T> {
  return work.catch((error) => {
    throw withParam(error, param)
  })
}

function withParam(error: unknown, param: string): unknown {
  if (error instanceof PictureError) return new ApiError('invalid_request', error.message, { param })
  return error instanceof ApiError ? new ApiError(error.code, error.message, { param }) : error
}
