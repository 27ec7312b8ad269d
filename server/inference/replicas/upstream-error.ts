// Translates upstream errors into this API's errors.
import { ApiError, type ErrorCode, errorCodes } from '../../../contract/errors.ts'

interface ParsedError {
  message: string
  code: unknown
  param: string | undefined
}

/** `retryable`: another replica might succeed. */
export function upstreamError(status: number, text: string): { error: ApiError; retryable: boolean } {
  const { message, code, param } = parseError(text)
  const toError = (errorCode: ErrorCode, errorMessage = message) =>
    new ApiError(errorCode, errorMessage, { ...(param && { param }) })
  if (status === 429 || status === 503)
    return { error: toError(status === 429 ? 'overloaded' : 'engine_unavailable'), retryable: true }
  if (status === 502 || status === 504) return { error: toError('engine_unavailable'), retryable: true }
  if (status >= 500)
    return { error: toError('engine_failed', `The server of this model failed: ${message}`), retryable: true }
  if (status === 401 || status === 403)
    return {
      error: toError(
        'engine_failed',
        'The server of this model does not let this service in. Its operator must mend TUNERY_UPSTREAMS.',
      ),
      retryable: true,
    }
  if (status === 404 || status === 405)
    return {
      error: toError('engine_failed', `The server of this model does not have what was asked: ${message}`),
      retryable: true,
    }
  if (status === 413) return { error: toError('body_too_large'), retryable: false }
  // An upstream that is a Tunery engine uses our own error codes.
  if (typeof code === 'string' && errorCodes[code as ErrorCode] === 400)
    return { error: toError(code as ErrorCode), retryable: false }
  const tooLong =
    code === 'context_length_exceeded' || /context (length|size|window)|maximum model length/i.test(message)
  return { error: toError(tooLong ? 'context_length_exceeded' : 'invalid_request'), retryable: false }
}

/** Whether the context has too little room for the length of the answer. */
export const exceedsContext = (status: number, text: string) =>
  status === 400 && /max_tokens|context length/i.test(text)

/** The API error for an error event in an upstream's stream. */
export const streamError = (data: string): ApiError =>
  new ApiError('engine_failed', `The server of this model broke the answer off: ${parseError(data).message}`)

/** Reads an error in OpenAI's shape, vLLM's older one (fields at the top level), FastAPI's, or plain text. */
function parseError(text: string): ParsedError {
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
