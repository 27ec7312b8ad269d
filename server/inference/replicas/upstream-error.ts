// What another server's error means to our client.
import { ApiError, type ErrorCode, errorCodes } from '../../../contract/errors.ts'

interface Foreign {
  message: string
  code: unknown
  param: string | undefined
}

/** `elsewhere`: whether another replica may do better. */
export function upstreamError(status: number, text: string): { error: ApiError; elsewhere: boolean } {
  const { message, code, param } = read(text)
  const of = (known: ErrorCode, said = message) => new ApiError(known, said, { ...(param && { param }) })
  if (status === 429 || status === 503)
    return { error: of(status === 429 ? 'overloaded' : 'engine_unavailable'), elsewhere: true }
  if (status === 502 || status === 504) return { error: of('engine_unavailable'), elsewhere: true }
  if (status >= 500)
    return { error: of('engine_failed', `The server of this model failed: ${message}`), elsewhere: true }
  if (status === 401 || status === 403)
    return {
      error: of(
        'engine_failed',
        'The server of this model does not let this service in. Its operator must mend TUNERY_UPSTREAMS.',
      ),
      elsewhere: true,
    }
  if (status === 404 || status === 405)
    return {
      error: of('engine_failed', `The server of this model does not have what was asked: ${message}`),
      elsewhere: true,
    }
  if (status === 413) return { error: of('body_too_large'), elsewhere: false }
  // Another Tunery's codes are ours.
  if (typeof code === 'string' && errorCodes[code as ErrorCode] === 400)
    return { error: of(code as ErrorCode), elsewhere: false }
  const tooLong =
    code === 'context_length_exceeded' || /context (length|size|window)|maximum model length/i.test(message)
  return { error: of(tooLong ? 'context_length_exceeded' : 'invalid_request'), elsewhere: false }
}

/** An error in the middle of a stream. */
export const brokenBy = (data: string): ApiError =>
  new ApiError('engine_failed', `The server of this model broke the answer off: ${read(data).message}`)

/** OpenAI's shape, vLLM's older one (its fields at the top), FastAPI's, or plain text. */
function read(text: string): Foreign {
  const nothing = { message: text.trim().slice(0, 500) || 'it gave no reason', code: undefined, param: undefined }
  try {
    const body = JSON.parse(text)
    const error =
      typeof body.error === 'object' && body.error !== null
        ? body.error
        : typeof body.error === 'string'
          ? { message: body.error }
          : body
    const message =
      error.message ??
      (error.detail === undefined
        ? undefined
        : typeof error.detail === 'string'
          ? error.detail
          : JSON.stringify(error.detail))
    if (typeof message !== 'string') return nothing
    return {
      message: message.slice(0, 2000),
      code: error.code,
      param: typeof error.param === 'string' ? error.param : undefined,
    }
  } catch {
    return nothing
  }
}
