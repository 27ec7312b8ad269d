// Translates upstream errors into this API's errors. Which of them are the client's fault: docs/upstreams.md.
import { ApiError, type ErrorCode, errorCodes } from '../../../../contract/errors.ts'
import { ReplicaFailure } from '../requests/replica.ts'

interface ParsedError {
  /** In one line; undefined for a page, or an answer without a reason. */
  message: string | undefined
  code: unknown
  param: string | undefined
}

/** Fields of what is sent that this service writes. */
const ownFields = new Set(['model', 'stream_options', 'cache_salt', 'lora_name', 'lora_path'])
const messageMax = 500
const retryAfter_seconds_max = 3600

interface Context {
  /** The client's body; undefined where the request was not a client's. */
  body?: Record<string, unknown>
  /** The header of the upstream's answer. */
  retryAfter?: string | undefined
}

/** `retryable`: another replica might succeed. */
export function upstreamError(
  status: number,
  text: string,
  { body, retryAfter }: Context = {},
): { error: ApiError; retryable: boolean } {
  const parsed = parseError(text)
  const { message, code, param } = parsed
  if (isClientsFault(status, parsed, body)) {
    const toError = (errorCode: ErrorCode) => new ApiError(errorCode, message!, { ...(param && { param }) })
    if (status === 413) return { error: toError('body_too_large'), retryable: false }
    // An upstream that is a Tunery engine uses our own error codes.
    if (typeof code === 'string' && Object.hasOwn(errorCodes, code) && errorCodes[code as ErrorCode] === 400)
      return { error: toError(code as ErrorCode), retryable: false }
    const tooLong = code === 'context_length_exceeded' || isTooLong(message!)
    return { error: toError(tooLong ? 'context_length_exceeded' : 'invalid_request'), retryable: false }
  }
  const retry_after_seconds = secondsOf(retryAfter)
  const details = retry_after_seconds === undefined ? {} : { details: { retry_after_seconds } }
  const failure = (errorCode: ErrorCode, what: string, hint: string) => ({
    error: new ApiError(errorCode, `The server of this model ${what}${message ? `: ${message}` : ''}${hint}`, details),
    retryable: true,
  })
  const again = retry_after_seconds === undefined ? 'in a moment' : `in ${retry_after_seconds} s`
  const wait = message ? '' : `. Try again ${again}.`
  if (status === 429) return failure('overloaded', 'takes no more requests now', wait)
  if (status === 503) return failure('engine_unavailable', 'cannot answer now', wait)
  if (status === 408 || status === 504) return failure('upstream_timeout', 'took too long', wait)
  if (status === 401 || status === 402 || status === 403) {
    const error = new ApiError(
      'upstream_failed',
      'The server of this model does not let this service in. Its operator must mend TUNERY_UPSTREAMS.',
    )
    return { error, retryable: true }
  }
  if (status >= 300 && status < 400) return failure('upstream_failed', 'sent this service to another address', '.')
  if (status >= 500) return failure('upstream_failed', 'failed', wait)
  return failure('upstream_failed', `did not take what this service sent (${status})`, message ? '' : '.')
}

/**
 * A 400, 413 or 422 with a reason in JSON, unless the reason is about a field that the client did not send, or about
 * this service's key. A page of a proxy in front of the server says nothing about the request.
 */
function isClientsFault(
  status: number,
  { message, code, param }: ParsedError,
  body: Record<string, unknown> | undefined,
): boolean {
  if (status !== 400 && status !== 413 && status !== 422) return false
  if (message === undefined || /api[ _-]?key|authoriz/i.test(message)) return false
  if (code === 'context_length_exceeded' || isTooLong(message)) return true
  const field = param?.split(/[.[]/, 1)[0]
  if (field === undefined) return true
  if (ownFields.has(field)) return false
  if (body === undefined || Object.hasOwn(body, field)) return true
  // Named otherwise there, or the length that the client left to this service.
  return field === 'max_tokens' && body.max_completion_tokens != null
}

const isTooLong = (message: string) => /context (length|size|window)|maximum model length/i.test(message)

/** Whether the context has too little room for the length of the answer. */
export const exceedsContext = (status: number, text: string) =>
  status === 400 && /max_tokens|context length/i.test(text)

/** The error for an answer of status 200 that is an error: some servers write the status into it. */
export function errorInAnswer(text: string, body: Record<string, unknown>): ApiError {
  const { code } = parseError(text)
  const status = Number.isInteger(code) && (code as number) >= 400 && (code as number) < 600 ? (code as number) : 500
  const { error, retryable } = upstreamError(status, text, { body })
  return retryable ? new ReplicaFailure(error.code, error.message) : error
}

/** The error for an error event in an upstream's stream. */
export function streamError(data: string): ReplicaFailure {
  const { message } = parseError(data)
  return new ReplicaFailure(
    'upstream_failed',
    `The server of this model broke the answer off${message ? `: ${message}` : '. Send the request once more.'}`,
    { lost: true },
  )
}

/** Retry-After in whole seconds, from seconds or a date. */
function secondsOf(header: string | undefined): number | undefined {
  if (header === undefined) return undefined
  // Date.parse takes nearly anything for a date.
  const date = /^[A-Z][a-z]{2}, /.test(header) ? Date.parse(header) : Number.NaN
  const seconds = /^\d{1,9}$/.test(header) ? Number(header) : Math.ceil((date - Date.now()) / 1000)
  return Number.isFinite(seconds) ? Math.min(retryAfter_seconds_max, Math.max(1, seconds)) : undefined
}

/** Reads an error in OpenAI's shape, vLLM's older one (fields at the top level), or FastAPI's. */
function parseError(text: string): ParsedError {
  const nothing = { message: undefined, code: undefined, param: undefined }
  try {
    const body = JSON.parse(text)
    const error =
      typeof body.error === 'object' && body.error !== null
        ? body.error
        : typeof body.error === 'string'
          ? { message: body.error }
          : body
    // FastAPI: a text, or a list with the place of each problem.
    const [problem] = Array.isArray(error.detail) ? error.detail : []
    const message = error.message ?? problem?.msg ?? error.detail
    const place = Array.isArray(problem?.loc) && problem.loc[0] === 'body' ? problem.loc[1] : undefined
    const param = error.param ?? place
    return {
      message: typeof message === 'string' ? inOneLine(message) || undefined : undefined,
      code: error.code,
      param: typeof param === 'string' ? param.slice(0, 100) : undefined,
    }
  } catch {
    return nothing
  }
}

/** Without line breaks and control characters. */
const inOneLine = (message: string) =>
  [...message.slice(0, messageMax)]
    .map((character) => (character < ' ' || character === '\u007f' ? ' ' : character))
    .join('')
    .trim()
