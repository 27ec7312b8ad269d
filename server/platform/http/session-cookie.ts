// The cookie of a session, and the proof that a request with it comes from the service's own page.
import { createHmac, timingSafeEqual } from 'node:crypto'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { ApiError } from '../../../contract/errors.ts'

/** Behind TLS: browsers take and send a cookie with this prefix by TLS alone, and from no subdomain. */
const secureName = '__Host-tunery_session'

declare module 'fastify' {
  interface FastifyInstance {
    /** Names the installation in the session's cookie. */
    installation: string
  }
}

/**
 * The name of the request's cookie. A browser sends a cookie to every port of a host, so that without TLS the name
 * carries the installation: all of its servers have one, and another service on the host has another. A proxy that is
 * not trusted cannot say that there is TLS, but a cookie can.
 */
function nameIn({ protocol, headers, server }: FastifyRequest): string {
  const isSecure = protocol === 'https' || cookieIn(headers.cookie, secureName) !== undefined
  return isSecure ? secureName : `tunery_session_${server.installation}`
}
/** The name until now, by the port: a session with it continues. */
const earlierNameIn = ({ socket }: FastifyRequest) => `tunery_session_${socket.localPort}`

/** The token of the request's session; undefined if it has none, or if a key signs it. */
export function sessionTokenIn(request: FastifyRequest): string | undefined {
  const { cookie, authorization } = request.headers
  if (cookie === undefined || authorization !== undefined) return undefined
  return cookieIn(cookie, nameIn(request)) ?? cookieIn(cookie, earlierNameIn(request))
}

export function cookieIn(header: string | undefined, name: string): string | undefined {
  for (const pair of header?.split(';') ?? []) {
    const at = pair.indexOf('=')
    if (at > 0 && pair.slice(0, at).trim() === name) return pair.slice(at + 1).trim()
  }
  return undefined
}

const cookie = (name: string, token: string, maxAge_s: number) =>
  `${name}=${token}; Max-Age=${maxAge_s}; Path=/; HttpOnly; SameSite=Lax${name === secureName ? '; Secure' : ''}`

/**
 * `publicOrigin`: the origin of TUNERY_PUBLIC_URL. If it has TLS, so has every page but one that was opened at the
 * service's own address.
 */
export function setSessionCookie(
  request: FastifyRequest,
  reply: FastifyReply,
  token: string,
  maxAge_s: number,
  publicOrigin: string | undefined,
): void {
  const { headers, host } = request
  const hasTls = publicOrigin?.startsWith('https:') && headers.origin !== `http://${host}`
  reply.header('set-cookie', cookie(hasTls ? secureName : nameIn(request), token, maxAge_s))
}

export function clearSessionCookie(request: FastifyRequest, reply: FastifyReply): void {
  reply.header('set-cookie', cookie(nameIn(request), '', 0))
  const earlier = earlierNameIn(request)
  if (cookieIn(request.headers.cookie, earlier) !== undefined) reply.header('set-cookie', cookie(earlier, '', 0))
}

/** The token that requests of a session carry in `x-csrf-token`: only a page of this origin can read it. */
export const csrfTokenOf = (token: string) => createHmac('sha256', token).update('csrf').digest('base64url')

/** Throws csrf_failed for a request with a session that another site's page has made. */
export function requireOwnPage(request: FastifyRequest, token: string, publicOrigin: string | undefined): void {
  requireSameOrigin(request, publicOrigin)
  if (request.method === 'GET' || request.method === 'HEAD') return
  const presented = Buffer.from(String(request.headers['x-csrf-token'] ?? ''))
  const expected = Buffer.from(csrfTokenOf(token))
  if (presented.length !== expected.length || !timingSafeEqual(presented, expected))
    throw new ApiError(
      'csrf_failed',
      'The header `x-csrf-token` is missing or not that of the session. `GET /v1/session` tells it; reload the page.',
    )
}

/**
 * Throws csrf_failed where the browser says that another site's page makes the request. `publicOrigin`: the origin of
 * TUNERY_PUBLIC_URL, for proxies that pass on neither host nor scheme.
 */
export function requireSameOrigin(request: FastifyRequest, publicOrigin: string | undefined): void {
  const { headers, method, host, protocol } = request
  const site = headers['sec-fetch-site']
  // A link on another site may lead here; its page cannot read what it shows. A frame navigates too.
  const followsLink =
    method === 'GET' &&
    headers['sec-fetch-mode'] === 'navigate' &&
    (headers['sec-fetch-dest'] ?? 'document') === 'document'
  const foreign = (site === 'cross-site' || site === 'same-site') && !followsLink
  const { origin } = headers
  const isOwn = origin === undefined || origin === `${protocol}://${host}` || origin === publicOrigin
  if (foreign || (method !== 'GET' && !isOwn))
    throw new ApiError(
      'csrf_failed',
      'Another site made this request with your session. Open the dashboard at its own address; ' +
        'behind a proxy, TUNERY_TRUSTED_PROXIES must name it, and TUNERY_PUBLIC_URL the address that people open.',
    )
}
