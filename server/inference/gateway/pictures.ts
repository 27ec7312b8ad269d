// Bounds on the pictures of a request, before a model is loaded or waited for.
import type { ContentPart } from '../../../contract/chat.ts'
import { ApiError } from '../../../contract/errors.ts'
import { pictureFile } from '../../../pictures/data-urls.ts'
import { PictureError, picturesMax, readHeader } from '../../../pictures/formats.ts'

interface Server {
  /** Whether the model reads pictures; undefined if only its server knows. */
  sees: boolean | undefined
  /** Whether pictures may be addresses, which the model's server fetches or refuses. */
  addresses: boolean
}

/**
 * Throws invalid_request for pictures that are too many, too large by their headers, of another format, or not in the
 * request; parameter_not_supported where the model reads text only.
 */
export function requirePictures({ messages }: Record<string, unknown>, { sees, addresses }: Server): void {
  const pictures = picturesOf(messages)
  if (pictures.length === 0) return
  if (sees === false)
    throw new ApiError(
      'parameter_not_supported',
      'This model reads text only, so it can’t be sent images. Ask one of the category multimodal in GET /v1/hub/.',
      { param: 'messages' },
    )
  if (pictures.length > picturesMax)
    throw new ApiError('invalid_request', `A request takes ${picturesMax} pictures; this one has ${pictures.length}.`, {
      param: 'messages',
    })
  for (const { url, param } of pictures) {
    if (addresses && !/^data:/i.test(url)) continue
    try {
      readHeader(pictureFile(url))
    } catch (error) {
      throw error instanceof PictureError ? new ApiError('invalid_request', error.message, { param }) : error
    }
  }
}

/** The pictures of validated messages, each with its field. */
function picturesOf(messages: unknown): { url: string; param: string }[] {
  if (!Array.isArray(messages)) return []
  return messages.flatMap(({ content }: { content?: string | ContentPart[] | null }, message) =>
    Array.isArray(content)
      ? content.flatMap((part, index) =>
          part.type === 'image_url'
            ? [{ url: part.image_url.url, param: `messages.${message}.content.${index}.image_url.url` }]
            : [],
        )
      : [],
  )
}

/** Characters of all pictures of validated messages. */
export const pictureChars = ({ messages }: Record<string, unknown>): number =>
  picturesOf(messages).reduce((sum, { url }) => sum + url.length, 0)
