// Bounds on the pictures of a request, and the fetching of those at addresses, before a model is loaded or waited for.
import type { ContentPart } from '../../../../contract/chat.ts'
import { ApiError } from '../../../../contract/errors.ts'
import { dataUrlOf, isAddress, pictureFile } from '../../../../pictures/data-urls.ts'
import { PictureError, picturesMax, readHeader } from '../../../../pictures/formats.ts'
import type { PictureFetcher } from '../../../platform/outbound/pictures.ts'

interface Server {
  /** Whether the model reads pictures; undefined if only its server knows. */
  sees: boolean | undefined
  /** Pictures at addresses: left to the model's server, which fetches or refuses them; fetched here; or refused. */
  addresses: 'passed' | 'fetched' | 'refused'
}

/** Most bytes of all pictures that are fetched for a request: as many as its body could have. */
const fetchedBytesMax = 24_000_000

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
      { param: pictures[0]!.param },
    )
  if (pictures.length > picturesMax)
    throw new ApiError('invalid_request', `A request takes ${picturesMax} pictures; this one has ${pictures.length}.`, {
      param: 'messages',
    })
  for (const { url, param } of pictures) {
    if (addresses === 'passed' && !/^data:/i.test(url)) continue
    if (isAddress(url)) {
      if (addresses === 'fetched') continue
      throw new ApiError(
        'invalid_request',
        'The picture is an address, and nothing is fetched from there: the operator of this service has not turned ' +
          'that on (TUNERY_FETCH_PICTURES). Send it as a data URL: data:image/png;base64,…',
        { param },
      )
    }
    try {
      readHeader(pictureFile(url))
    } catch (error) {
      throw error instanceof PictureError ? new ApiError('invalid_request', error.message, { param }) : error
    }
  }
}

/**
 * The body with pictures at addresses as data URLs; the same body if there are none. Throws invalid_request, which
 * names the picture, or the signal's reason.
 */
export async function withFetchedPictures<Body extends Record<string, unknown>>(
  body: Body,
  account_id: string,
  fetcher: PictureFetcher,
  signal: AbortSignal,
): Promise<Body> {
  const params = new Map<string, string>()
  for (const { url, param } of picturesOf(body.messages)) if (isAddress(url) && !params.has(url)) params.set(url, param)
  if (params.size === 0) return body
  const failure = new AbortController()
  const ended = AbortSignal.any([signal, failure.signal])
  let bytes = 0
  const urls = new Map<string, string>()
  const fetchOne = async (url: string, param: string) => {
    try {
      const file = await fetcher.fetch(account_id, url, ended)
      bytes += file.length
      if (bytes > fetchedBytesMax)
        throw new PictureError(
          `The pictures at addresses have more than ${fetchedBytesMax / 1e6} MB together. Send fewer or smaller ones.`,
        )
      urls.set(url, dataUrlOf(readHeader(file).format, file))
    } catch (error) {
      // The first to fail ends the others, which fail with its reason.
      if (failure.signal.aborted) return
      failure.abort(error instanceof PictureError ? new ApiError('invalid_request', error.message, { param }) : error)
    }
  }
  await Promise.all([...params].map(([url, param]) => fetchOne(url, param)))
  signal.throwIfAborted()
  failure.signal.throwIfAborted()
  const withData = (part: ContentPart): ContentPart =>
    part.type === 'image_url' && urls.has(part.image_url.url)
      ? { ...part, image_url: { ...part.image_url, url: urls.get(part.image_url.url)! } }
      : part
  const messages = (body.messages as { content?: string | ContentPart[] | null }[]).map((message) =>
    Array.isArray(message.content) ? { ...message, content: message.content.map(withData) } : message,
  )
  return { ...body, messages }
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
