import type { FastifyContextConfig, FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { ApiError } from '../../../contract/errors.ts'
import type { Route } from '../../../contract/route.ts'
import { type Scope, scopes } from '../../../contract/scopes.ts'
import { after } from '../../../lib/after.ts'
import type { WindowCounters } from '../redis/window-counter.ts'
import { createAuthThrottle, wrongKeysPerMinute } from './auth-throttle.ts'
import type { Caller } from './caller.ts'
import { type Limits, rateLimitError, requireLimits, setLimitHeaders } from './limits.ts'
import { clearSessionCookie, requireOwnPage, requireSameOrigin, sessionTokenIn } from './session-cookie.ts'

/** Throws while routes are mounted, so that startup fails, for an API route without a scope that a key can carry. */
export function requireScopes(app: FastifyInstance): void {
  app.addHook('onRoute', ({ method, url, config }) => {
    if (!/^\/(api\/)?v1(\/|$)/.test(url) || url === '/v1/openapi.json') return
    const { route, redirect } = (config ?? {}) as FastifyContextConfig
    if (redirect) return
    const scope = route?.scope
    if (!scope || !([...scopes, 'session', 'public'] as string[]).includes(scope))
      throw new Error(`${method} ${url} states no scope that a key can carry; see contract/scopes.ts`)
  })
}

export interface Keys {
  /** The caller of a key; undefined for a wrong key. With `knownOnly`, looks up only keys that were right before. */
  find(key: string, knownOnly: boolean): Promise<Caller | undefined> | Caller | undefined
  /** What `find` would reply now for the key of this caller. */
  findAgain(caller: Caller): Promise<Caller | undefined> | Caller | undefined
  /** The caller of a session's token. */
  findSession(token: string): Promise<Caller | undefined>
}

interface Authenticate {
  /** Finds the caller of a request. Throttles wrong keys per address, before any lookup. */
  (request: FastifyRequest, reply: FastifyReply): Promise<Caller> | Caller
  /** Checks again the key of a request that was authenticated when it began. */
  reauthenticate(request: FastifyRequest, before: Caller): Promise<Caller> | Caller
}

function createAuthenticate(keys: Keys, counters: WindowCounters, publicOrigin?: string): Authenticate {
  const throttle = createAuthThrottle(counters)
  function reauthenticate(request: FastifyRequest, before: Caller): Promise<Caller> | Caller {
    const token = sessionTokenIn(request)
    const required = (caller: Caller | undefined): Caller => {
      if (!caller) throw token ? sessionEnded() : wrongKey()
      return caller
    }
    return after(token ? keys.findSession(token) : keys.findAgain(before), required)
  }
  return Object.assign(authenticate, { reauthenticate })

  async function authenticateSession(request: FastifyRequest, reply: FastifyReply, token: string): Promise<Caller> {
    // Looked up for a blocked address too: nobody guesses 256 bits, and wrong keys of a neighbour must not sign out.
    const caller = await keys.findSession(token)
    if (caller) {
      requireOwnPage(request, token, publicOrigin)
      return caller
    }
    // So that an open page does not send the ended session again and again.
    clearSessionCookie(request, reply)
    setLimitHeaders(reply, await throttle.recordWrongKey(request.ip))
    throw sessionEnded()
  }

  function authenticate(request: FastifyRequest, reply: FastifyReply): Promise<Caller> | Caller {
    const token = sessionTokenIn(request)
    if (token !== undefined) return authenticateSession(request, reply, token)
    const until = throttle.blockedUntil(request.ip)
    const key = keyIn(request)
    if (typeof key !== 'string') return refuse(request, reply, until, key)
    return after(keys.find(key, until !== undefined), (caller) => caller ?? refuse(request, reply, until, undefined))
  }

  /** `unreadable`: what is wrong with a header that has no key. */
  async function refuse(
    request: FastifyRequest,
    reply: FastifyReply,
    until: number | undefined,
    unreadable: ApiError | undefined,
  ): Promise<never> {
    if (until !== undefined) {
      setLimitHeaders(reply, await throttle.window(request.ip))
      throw tooManyWrongKeys(until)
    }
    if (unreadable) {
      setLimitHeaders(reply, await throttle.window(request.ip))
      throw unreadable
    }
    const window = await throttle.recordWrongKey(request.ip)
    setLimitHeaders(reply, window)
    throw window.exceeded ? tooManyWrongKeys(window.resets_at) : wrongKey()
  }
}

const tooManyWrongKeys = (resets_at: number) =>
  rateLimitError({ limit: 'wrong_keys_per_minute', max: wrongKeysPerMinute, resets_at })

/** Lookups of a caller whose account changes between each of them and the next check. */
const lookups_max = 10

/** Why a request with this credential may not continue. */
export const endedCredential = ({ kind }: Pick<Caller, 'kind'>): ApiError =>
  kind === 'session' ? sessionEnded() : wrongKey()

const wrongKey = () =>
  new ApiError(
    'invalid_api_key',
    'This API key is not valid: mistyped, revoked or expired. `./tunery keys create --name NAME` makes another.',
  )
const sessionEnded = () => new ApiError('session_ended', 'You are signed out: the session has ended. Sign in again.')

/** Throws if the caller's account is suspended or their key or session lacks a scope of the route. */
export function requirePermission(
  { kind, suspended, scopes: own }: Caller,
  { scope, or_scope, also, path, method }: Route,
): void {
  if (scope === 'public') return
  // Signing out is always possible.
  if (suspended && !(kind === 'session' && path === '/session' && method === 'DELETE'))
    throw new ApiError(
      'account_suspended',
      'This account is suspended. Ask the operator of this service to reinstate it.',
    )
  if (scope === 'session') {
    if (kind === 'session') return
    throw new ApiError(
      'session_required',
      'This operation is for people who have signed in to the dashboard; a key cannot do it.',
    )
  }
  if (!own.includes(scope) && !(or_scope && own.includes(or_scope))) throw missingScope('This operation', scope)
  if (also) requireEach(own, also, 'This operation')
}

function requireEach(scopes: readonly Scope[], needed: readonly Scope[], what: string): void {
  for (const scope of needed) if (!scopes.includes(scope)) throw missingScope(what, scope)
}

const missingScope = (what: string, scope: Scope) =>
  new ApiError(
    'insufficient_permissions',
    `${what} needs the scope '${scope}', which this key does not carry or its member's role does not allow.`,
    { details: { scope } },
  )

/** Throws if a field of the body needs a scope that the caller lacks. */
function requireScopesOfBody({ scopes: own }: Caller, { also_with = {} }: Route, body: unknown): void {
  for (const [field, needed] of Object.entries(also_with)) {
    const value = field.split('.').reduce<unknown>((object, name) => Object(object)[name], body)
    const isGiven = value !== undefined && value !== null && !(Array.isArray(value) && value.length === 0)
    if (isGiven) requireEach(own, needed, `'${field}'`)
  }
}

/** The token of the header `Authorization: Bearer <token>`. */
export const bearerToken = ({ headers }: FastifyRequest): string | undefined =>
  /^\s*bearer\s+(\S+)\s*$/i.exec(headers.authorization ?? '')?.[1]

/** The prefix without which Tinker's SDK takes no key. */
const tinkerPrefix = /^tml-/

/** The key of a request, or the error to answer if it has none. */
function keyIn(request: FastifyRequest): string | ApiError {
  const header = request.headers['x-api-key']
  if (typeof header === 'string' && request.routeOptions.config.route?.key_header)
    return header.trim().replace(tinkerPrefix, '')
  if (!request.headers.authorization)
    return new ApiError('invalid_api_key', 'No API key was given. Send the header `Authorization: Bearer <key>`.')
  return bearerToken(request) ?? new ApiError('invalid_api_key', 'The Authorization header must be `Bearer <key>`.')
}

/**
 * Adds the hook that checks key, account limits and scope of each request to a route of the contract, before its body
 * is read.
 */
export function requireAuth(
  app: FastifyInstance,
  keys: Keys,
  limits: Limits,
  /** Throws rate_limit_exceeded for too many requests of an address to routes that need no key. */
  countPublicRequest: (address: string) => Promise<void>,
  counters: WindowCounters,
  /** The origin under which browsers reach the service, if it is set. */
  publicOrigin?: string,
): void {
  const authenticate = createAuthenticate(keys, counters, publicOrigin)
  app.decorateRequest('caller', null)
  app.decorateRequest('recheck', null)
  function recheck(this: FastifyRequest): Promise<void> | void {
    const { route } = this.routeOptions.config
    if (this.caller && route)
      return after(authenticate.reauthenticate(this, this.caller), (caller) => requirePermission(caller, route))
  }
  function admit(request: FastifyRequest, reply: FastifyReply, route: Route, lookups = 1): Promise<void> | void {
    if (lookups > lookups_max)
      throw new ApiError(
        'overloaded',
        'This account is being changed all the time. Send the request again in a moment.',
      )
    return after(authenticate(request, reply), (caller) => {
      if (!app.connections.claim(request.raw, caller.account_id))
        throw rateLimitError({
          limit: 'connections_per_account',
          max: app.connections.owner_max,
          resets_at: Date.now() + 1000,
        })
      return after(requireLimits(limits, caller, route, reply), (decided) => {
        if (!decided) return admit(request, reply, route, lookups + 1)
        requirePermission(caller, route)
        request.caller = caller
        request.recheck = recheck
      })
    })
  }
  const admitPublic = (request: FastifyRequest) => {
    if (request.method !== 'GET') requireSameOrigin(request, publicOrigin)
    return countPublicRequest(request.ip)
  }
  // One hook for all checks, which waits only for what is not in memory: each hook costs every request an async step.
  app.addHook('onRequest', (request, reply, done) => {
    const { route } = request.routeOptions.config
    if (!route) return done()
    const waiting = route.scope === 'public' ? admitPublic(request) : admit(request, reply, route)
    if (waiting !== undefined) void waiting.then(() => done(), done)
    else done()
  })
  // Check the key again after the body: it may have been revoked, or have lost scopes, during a slow upload. A stream
  // of events does so by itself.
  app.decorateRequest('reauthorize', null)
  app.addHook('preHandler', (request, _reply, done) => {
    const { route } = request.routeOptions.config
    const streamsEvents = route?.produces === 'application/x-ndjson'
    if (!route || (route.method === 'GET' && !streamsEvents) || !request.caller) return done()
    const permitted = (caller: Caller) => {
      requirePermission(caller, route)
      if (route.also_with) requireScopesOfBody(caller, route, request.body)
      request.caller = caller
      return caller
    }
    const before = request.caller
    if (route.consumes || streamsEvents) {
      request.reauthorize = async () => permitted(await authenticate.reauthenticate(request, request.caller ?? before))
      return done()
    }
    const waiting = after(authenticate.reauthenticate(request, before), permitted)
    if (waiting instanceof Promise) void waiting.then(() => done(), done)
    else done()
  })
}
