import type { FastifyInstance, FastifyRequest } from 'fastify'
import { ApiError } from '../../contract/errors.ts'
import type { Scope } from '../../contract/route.ts'

/** Who makes a request. */
export interface Caller {
  account_id: string
  user_id: string
  key_id: string
  scopes: readonly Scope[]
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
    request.caller = await callerOf(request, find)
    if (!request.caller.scopes.includes(route.scope))
      throw new ApiError('insufficient_permissions', `This key does not carry the scope '${route.scope}', which this operation needs.`, {
        details: { scope: route.scope },
      })
  })
}

async function callerOf(request: FastifyRequest, find: (key: string) => Promise<Caller | undefined>): Promise<Caller> {
  const header = request.headers.authorization
  if (!header) throw new ApiError('invalid_api_key', 'No API key was given. Send the header `Authorization: Bearer <key>`.')
  const key = /^\s*bearer\s+(\S+)\s*$/i.exec(header)?.[1]
  if (!key) throw new ApiError('invalid_api_key', 'The Authorization header must be `Bearer <key>`.')
  const caller = await find(key)
  if (!caller) throw new ApiError('invalid_api_key', 'This API key is not valid. Check it for typos, or make one with `./tunery keys create --name NAME`.')
  return caller
}
