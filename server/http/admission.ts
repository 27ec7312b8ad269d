import type { FastifyInstance } from 'fastify'
import { createIdentify, type Keys, requirePermission } from './auth.ts'
import { type Limits, requireLimits } from './limits.ts'

/** Lets a request reach a route of the contract only with a valid key, within its account's limits and with the route's scope, before its body is read. */
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
  // A body may take as long as its sender likes: a key that was revoked meanwhile, or may do less by now, changes nothing any more.
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
