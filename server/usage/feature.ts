import type { Context, Feature } from '../feature.ts'
import type { Limits } from '../limits/index.ts'
import type { Plans } from '../plans.ts'
import { usageRoutes } from './routes.ts'
import { createUsage, type Usage } from './service.ts'

export function createUsageFeature(
  context: Context,
  { plans, limits }: { plans: Plans; limits: Limits },
): Feature & { usage: Usage } {
  const usage = createUsage({ ...context, database_url: context.config.database_url, limits, currency: plans.currency })
  return {
    usage,
    mount: (app) => usageRoutes(app, usage),
    async start() {
      await usage.start()
      // It goes on until the last answer has ended; see `close` of the services.
      return []
    },
  }
}
