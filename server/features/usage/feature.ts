import type { StorageReport } from '../../../contract/usage.ts'
import type { Caller } from '../../platform/http/caller.ts'
import type { Plans } from '../../platform/plans.ts'
import type { Context, Feature } from '../feature.ts'
import { usageRoutes } from './routes.ts'
import { createUsage, type Usage } from './service.ts'

export { createDayThresholds } from './thresholds.ts'

export function createUsageFeature(
  { config, db, dataDir, quota, log, now }: Context,
  { plans }: { plans: Plans },
): Feature & { usage: Usage } {
  const usage = createUsage({ db, dataDir, database_url: config.database_url, currency: plans.currency, log, now })
  async function storageOf({ account_id, tier }: Caller): Promise<StorageReport> {
    const items = await quota.stored(db, account_id)
    return { max_bytes: quota.maxBytes(tier), used_bytes: items.reduce((sum, { bytes }) => sum + bytes, 0), items }
  }
  return {
    usage,
    mount: (app) => usageRoutes(app, usage, storageOf),
    async start() {
      await usage.start()
      // It runs until the last answer has ended; see `close` of the services.
      return []
    },
  }
}
