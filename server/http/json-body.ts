import type { FastifyRequest } from 'fastify'
import { ApiError } from '../../contract/errors.ts'
import { hasTooManyParts, tooManyParts } from '../../lib/http/json-limits.ts'

// Fatal: replaced characters would be stored, and trained or answered on, as if the client had sent them.
const utf8 = new TextDecoder('utf-8', { fatal: true })

// Keys that would reach an object's prototype where a parsed body is copied carelessly.
const forbiddenKey = /"(?:_|\\u005[fF]){2}proto(?:_|\\u005[fF]){2}"\s*:/

/**
 * Takes a body for JSON that says nothing of its type, or that it is plain text, as clients do that set none. A browser
 * may send these to another site unasked, but not with a key: there are no cookies, and the header of the key needs the
 * site's permission.
 */
export function assumeJson(request: FastifyRequest): void {
  const { route } = request.routeOptions.config
  const { headers } = request
  if (!route || route.consumes) return
  if (/^\s*(text\/plain\s*(;.*)?)?$/i.test(headers['content-type'] ?? '')) headers['content-type'] = 'application/json'
}

/**
 * Parses a JSON body, and keeps its text for those who pass it on. An empty one is none: many clients name JSON as the
 * type of a body that they do not send.
 */
export function parseJsonBody(
  request: FastifyRequest,
  body: string | Buffer,
  done: (error: Error | null, value?: unknown) => void,
): void {
  let value: unknown
  try {
    if (hasTooManyParts(bytesOf(body))) throw new ApiError('invalid_request', tooManyParts)
    const text = typeof body === 'string' ? body : utf8.decode(body)
    if (forbiddenKey.test(text)) throw new ApiError('invalid_request', "The key '__proto__' is not allowed in a body.")
    if (text !== '') value = JSON.parse(text)
    request.bodyText = text
  } catch (error) {
    done(
      error instanceof ApiError
        ? error
        : new ApiError('invalid_json', `The body is not valid JSON: ${(error as Error).message}`),
    )
    return
  }
  done(null, value)
}

const bytesOf = (body: string | Buffer) => (typeof body === 'string' ? Buffer.from(body) : body)
