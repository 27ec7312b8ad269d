import type { FastifyContextConfig, FastifyInstance, FastifyRequest } from 'fastify'
import { ApiError } from '../../contract/errors.ts'
import { type Role, type Scope, scopes } from '../../contract/scopes.ts'
import type { Actor } from '../audit.ts'

/** Who makes a request: a key of a member of an account. */
export interface Caller extends Actor {
  kind: 'key'
  account_id: string
  user_id: string
  key_id: string
  role: Role
  /** What the key carries and the member's role allows. */
  scopes: readonly Scope[]
  /** The id of the account's tier. */
  tier: string
  suspended: boolean
}

/** Refuses routes of the API that state no scope, or one that nobody can have, as they are mounted: starting up fails with them. */
export function requireScopes(app: FastifyInstance): void {
  app.addHook('onRoute', ({ method, url, config }) => {
    if (!/^\/(api\/)?v1(\/|$)/.test(url) || url === '/v1/openapi.json') return
    const scope = (config as FastifyContextConfig | undefined)?.route?.scope
    if (!scope || !scopes.includes(scope)) throw new Error(`${method} ${url} states no scope that a key can carry; see contract/scopes.ts`)
  })
}

/**
 * Lets a request on only with a valid key that carries the route's scope, before its body is read. `find` looks a key up and answers
 * undefined for a wrong one.
 */
export function requireKeys(app: FastifyInstance, find: (key: string) => Promise<Caller | undefined>): void {
  app.decorateRequest('caller', null)
  app.addHook('onRequest', async (request) => {
    const route = request.routeOptions.config.route
    if (!route) return
    const caller = await callerOf(request, find)
    if (caller.suspended) throw new ApiError('account_suspended', 'This account is suspended. Ask the operator of this service to reinstate it.')
    if (!caller.scopes.includes(route.scope))
      throw new ApiError(
        'insufficient_permissions',
        `This operation needs the scope '${route.scope}', which this key does not carry or its member's role does not allow.`,
        { details: { scope: route.scope } },
      )
    request.caller = caller
  })
}

async function callerOf(request: FastifyRequest, find: (key: string) => Promise<Caller | undefined>): Promise<Caller> {
  const header = request.headers.authorization
  if (!header) throw new ApiError('invalid_api_key', 'No API key was given. Send the header `Authorization: Bearer <key>`.')
  const key = /^\s*bearer\s+(\S+)\s*$/i.exec(header)?.[1]
  if (!key) throw new ApiError('invalid_api_key', 'The Authorization header must be `Bearer <key>`.')
  const caller = await find(key)
  if (!caller)
    throw new ApiError('invalid_api_key', 'This API key is not valid: mistyped, revoked or expired. `./tunery keys create --name NAME` makes another.')
  return caller
}
