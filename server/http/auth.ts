import type { FastifyContextConfig, FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { ApiError } from '../../contract/errors.ts'
import type { Route } from '../../contract/route.ts'
import { type Role, type Scope, scopes } from '../../contract/scopes.ts'
import type { Actor } from '../events/audit.ts'
import { createAttempts, wrongKeysPerMinute } from './auth-throttle.ts'
import { type Limits, refusal, requireLimits, tell } from './limits.ts'

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

/**
 * Refuses routes of the API that state no scope, or one that nobody can have, as they are mounted: starting up fails
 * with them.
 */
export function requireScopes(app: FastifyInstance): void {
  app.addHook('onRoute', ({ method, url, config }) => {
    if (!/^\/(api\/)?v1(\/|$)/.test(url) || url === '/v1/openapi.json') return
    const scope = (config as FastifyContextConfig | undefined)?.route?.scope
    if (!scope || !scopes.includes(scope))
      throw new Error(`${method} ${url} states no scope that a key can carry; see contract/scopes.ts`)
  })
}

export interface Keys {
  /** Whose key it is; undefined for a wrong one. `knownOnly`: only a key that was right before is looked up. */
  find(key: string, knownOnly: boolean): Promise<Caller | undefined>
}

export interface Identify {
  /** Finds out who makes a request. Wrong keys are limited per address, before any look-up. */
  (request: FastifyRequest, reply: FastifyReply): Promise<Caller>
  /** The same of one that was known when its request began. */
  again(request: FastifyRequest): Promise<Caller>
}

export function createIdentify(keys: Keys): Identify {
  const attempts = createAttempts()
  const wrongKey = () =>
    new ApiError(
      'invalid_api_key',
      'This API key is not valid: mistyped, revoked or expired. `./tunery keys create --name NAME` makes another.',
    )
  async function again(request: FastifyRequest): Promise<Caller> {
    const caller = await keys.find(keyIn(request) as string, true)
    if (!caller) throw wrongKey()
    return caller
  }
  return Object.assign(identify, { again })

  async function identify(request: FastifyRequest, reply: FastifyReply): Promise<Caller> {
    const until = attempts.refusedUntil(request.ip)
    const key = keyIn(request)
    const caller = typeof key === 'string' ? await keys.find(key, until !== undefined) : undefined
    if (caller) return caller
    if (until !== undefined) {
      tell(reply, await attempts.window(request.ip))
      throw refusal({ limit: 'wrong_keys_per_minute', max: wrongKeysPerMinute, resets_at: until })
    }
    if (typeof key !== 'string') {
      tell(reply, await attempts.window(request.ip))
      throw key
    }
    tell(reply, await attempts.wrong(request.ip))
    throw wrongKey()
  }
}

/** Throws unless the caller's account is not suspended and their key carries the route's scope. */
export function requirePermission({ suspended, scopes: carried }: Caller, { scope, or_scope }: Route): void {
  if (suspended)
    throw new ApiError(
      'account_suspended',
      'This account is suspended. Ask the operator of this service to reinstate it.',
    )
  if (!carried.includes(scope) && !(or_scope && carried.includes(or_scope)))
    throw new ApiError(
      'insufficient_permissions',
      `This operation needs the scope '${scope}', which this key does not carry or its member's role does not allow.`,
      { details: { scope } },
    )
}

/** The key of a request, or the error of one that has none. */
function keyIn({ headers }: FastifyRequest): string | ApiError {
  const header = headers.authorization
  if (!header)
    return new ApiError('invalid_api_key', 'No API key was given. Send the header `Authorization: Bearer <key>`.')
  return (
    /^\s*bearer\s+(\S+)\s*$/i.exec(header)?.[1] ??
    new ApiError('invalid_api_key', 'The Authorization header must be `Bearer <key>`.')
  )
}

/**
 * Lets a request reach a route of the contract only with a valid key, within its account's limits and with the route's
 * scope, before its body is read.
 */
export function admitRequests(app: FastifyInstance, keys: Keys, limits: Limits): void {
  const identify = createIdentify(keys)
  app.decorateRequest('caller', null)
  // One hook for all of it: each costs every request its turn.
  app.addHook('onRequest', async (request, reply) => {
    const { route } = request.routeOptions.config
    if (!route) return
    const caller = await identify(request, reply)
    await requireLimits(limits, caller, route, reply)
    requirePermission(caller, route)
    request.caller = caller
  })
  // A body may take as long as its sender likes: a key that was revoked meanwhile, or may do less by now, changes
  // nothing any more.
  app.decorateRequest('askAgain', null)
  app.addHook('preHandler', async (request) => {
    const { route } = request.routeOptions.config
    if (!route || route.method === 'GET' || !request.caller) return
    const again = async () => {
      request.caller = await identify.again(request)
      requirePermission(request.caller, route)
      return request.caller
    }
    if (route.consumes) request.askAgain = again
    else await again()
  })
}
