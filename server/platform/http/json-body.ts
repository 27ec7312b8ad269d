import type { FastifyRequest } from 'fastify'
import { ApiError } from '../../../contract/errors.ts'
import { hasTooManyParts, tooManyParts } from '../../../lib/http/json-limits.ts'
import { parseJson } from '../../../lib/json.ts'

// Fatal: otherwise replacement characters would be stored or trained on as if the client had sent them.
const utf8 = new TextDecoder('utf-8', { fatal: true })

// Rejects `__proto__`, which could change an object's prototype when a parsed body is copied.
const forbiddenKey = /"(?:_|\\u005[fF]){2}proto(?:_|\\u005[fF]){2}"\s*:/

/**
 * Treats a body without a content type, or with text/plain, as JSON: some clients set no type. This opens no CSRF hole:
 * browsers may send such bodies across origins without a preflight, but not with an Authorization header or the
 * `x-csrf-token` that a request with a session needs.
 */
export function assumeJson(request: FastifyRequest): void {
  const { route } = request.routeOptions.config
  const { headers } = request
  if (!route || route.consumes) return
  if (/^\s*(text\/plain\s*(;.*)?)?$/i.test(headers['content-type'] ?? '')) headers['content-type'] = 'application/json'
}

/**
 * Parses a JSON body and stores its text in `bodyText`. An empty body counts as none: many clients send a JSON content
 * type without a body.
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
    if (text !== '') value = parseJson(text)
    request.bodyText = text
  } catch (error) {
    done(
      error instanceof ApiError
        ? error
        : new ApiError('invalid_json', `The body is not valid JSON${reasonFor(request, error as Error)}`),
    )
    return
  }
  done(null, value)
}

/** What the parser says repeats a part of the body, which may be a password where people sign in. */
const reasonFor = ({ routeOptions }: FastifyRequest, { message }: Error) =>
  ['public', 'session'].includes(routeOptions.config.route?.scope ?? '') ? '.' : `: ${message}`

const bytesOf = (body: string | Buffer) => (typeof body === 'string' ? Buffer.from(body) : body)
