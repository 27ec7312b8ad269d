// Request bodies and JSON responses on plain node:http.
import type { IncomingMessage, ServerResponse } from 'node:http'
import { createGunzip } from 'node:zlib'
import type { z } from 'zod'
import { ApiError, errorBody } from '../../contract/errors.ts'
import { hasTooManyParts, tooManyParts } from '../../lib/http/json-limits.ts'
import { parseJson } from '../../lib/json.ts'

export const bodyBytesMax = 8 * 1024 * 1024
const issuesMax = 10

/**
 * Parses the body as JSON and validates it with `schema`. Throws ApiError: body_too_large, invalid_json, or
 * invalid_request naming the first bad field.
 */
export async function readBody<T>(
  request: IncomingMessage,
  schema: z.ZodType<T>,
  bytes_max = bodyBytesMax,
): Promise<T> {
  const bytes = await readBytes(request, bytes_max)
  if (hasTooManyParts(bytes)) throw new ApiError('invalid_request', tooManyParts)
  const body = parseBody(bytes)
  const result = schema.safeParse(body)
  if (result.success) return result.data
  const issues = result.error.issues
    .slice(0, issuesMax)
    .map((issue) => ({ field: issue.path.join('.'), message: issue.message }))
  const first = issues[0]!
  const message = first.field === '' ? first.message : `${first.field}: ${first.message}`
  throw new ApiError('invalid_request', message, {
    details: { issues },
    param: first.field === '' ? undefined : first.field,
  })
}

async function readBytes(request: IncomingMessage, bytes_max: number): Promise<Buffer> {
  const tooLarge = new ApiError('body_too_large', `The body is larger than ${bytes_max} bytes.`)
  if (Number(request.headers['content-length']) > bytes_max) throw tooLarge
  const chunks: Buffer[] = []
  let length = 0
  for await (const chunk of decoded(request)) {
    length += chunk.length
    if (length > bytes_max) throw tooLarge
    chunks.push(chunk)
  }
  return Buffer.concat(chunks)
}

/** The bytes of the body without its Content-Encoding. Throws ApiError unsupported_media_type or invalid_request. */
async function* decoded(request: IncomingMessage): AsyncGenerator<Buffer> {
  const encoding = request.headers['content-encoding']?.trim().toLowerCase() ?? ''
  if (encoding === '' || encoding === 'identity') return yield* request as AsyncIterable<Buffer>
  if (encoding !== 'gzip')
    throw new ApiError(
      'unsupported_media_type',
      `Content-Encoding '${encoding.slice(0, 40)}' is not read here. Send the body with gzip, or as it is.`,
    )
  const gunzip = createGunzip()
  try {
    yield* request.pipe(gunzip) as AsyncIterable<Buffer>
  } catch (error) {
    throw new ApiError('invalid_request', `The body cannot be decoded with gzip: ${(error as Error).message}.`)
  } finally {
    request.unpipe(gunzip)
    gunzip.destroy()
  }
}

function parseBody(bytes: Buffer): unknown {
  try {
    return parseJson(new TextDecoder('utf-8', { fatal: true }).decode(bytes))
  } catch (error) {
    throw new ApiError('invalid_json', `The body is not JSON in UTF-8: ${(error as Error).message}`)
  }
}

/** The header's value, or undefined if it is missing, empty or repeated. */
export function header(request: IncomingMessage, name: string): string | undefined {
  const value = request.headers[name]
  return typeof value === 'string' && value !== '' ? value : undefined
}

export function sendJson(
  response: ServerResponse,
  status: number,
  body: unknown,
  headers: Record<string, string> = {},
): void {
  const bytes = Buffer.from(JSON.stringify(body))
  response
    .writeHead(status, {
      'content-type': 'application/json; charset=utf-8',
      'content-length': bytes.length,
      ...headers,
    })
    .end(bytes)
}

/**
 * Sends an error response, unless the client has disconnected. An error that is not an ApiError becomes a 500 without
 * internal details.
 */
export function sendError(response: ServerResponse, error: unknown): void {
  if (response.headersSent || response.destroyed) return void response.end()
  const apiError = toApiError(error)
  const headers: Record<string, string> = {}
  if (apiError.status === 503) headers['retry-after'] = '1'
  if (apiError.status === 401) headers['www-authenticate'] = 'Bearer'
  // Close the connection: the unread rest of the body would be parsed as the next request.
  if (apiError.code === 'body_too_large') headers.connection = 'close'
  sendJson(response, apiError.status, errorBody(apiError, true), headers)
}

function toApiError(error: unknown): ApiError {
  return error instanceof ApiError
    ? error
    : new ApiError('internal_error', 'The engine failed unexpectedly. Its log has the reason.')
}
