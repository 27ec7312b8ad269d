import type { Limits } from '../../platform/limits/index.ts'
import type { Plans } from '../../platform/plans.ts'
import type { Context, Feature } from '../feature.ts'
import { accountRoutes } from './routes.ts'
import { Accounts } from './service.ts'

export function createAccountsFeature(
  { config, db, changes, running, stopping, log, now }: Context,
  { plans, limits }: { plans: Plans; limits: Limits },
): Feature & { accounts: Accounts } {
  const accounts = new Accounts({
    db,
    plans,
    limits,
    defaultTier: config.default_tier,
    keysMax: config.max_keys,
    changes,
    log,
    now,
  })
  running.define('key', accounts.currentCallers)
  return {
    accounts,
    mount: (app) => accountRoutes(app, accounts, stopping),
    start: async () => [accounts.start(), limits.start()],
  }
}
