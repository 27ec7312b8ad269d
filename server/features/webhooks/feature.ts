import pkg from '../../../package.json' with { type: 'json' }
import type { AddressRules } from '../../platform/outbound/addresses.ts'
import type { Secrets } from '../../platform/storage/secrets.ts'
import type { Context, Feature } from '../feature.ts'
import { webhookRoutes } from './routes.ts'
import { Webhooks } from './service.ts'
import { backlog } from './store.ts'

export function createWebhooksFeature(
  { config, db, metrics, log, now }: Context,
  { secrets, rules }: { secrets: Secrets; rules: AddressRules },
): Feature & { webhooks: Webhooks } {
  const webhooks = new Webhooks({
    db,
    secrets,
    rules,
    max: config.max_webhooks,
    version: pkg.version,
    log,
    metrics,
    now,
  })
  metrics.onLook(async () => {
    const { pending, due_at } = await backlog(db, now())
    metrics.webhooksPending.set(pending)
    metrics.webhookLag.set(due_at === undefined ? 0 : Math.max(0, now() - due_at) / 1000)
  })
  return {
    webhooks,
    mount: (app) => webhookRoutes(app, webhooks),
    async start() {
      await webhooks.releaseAllLeases()
      return [webhooks.deliverer.start()]
    },
  }
}
