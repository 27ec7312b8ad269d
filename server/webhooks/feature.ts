import pkg from '../../package.json' with { type: 'json' }
import type { Context, Feature } from '../feature.ts'
import type { Secrets } from '../storage/secrets.ts'
import { readAllowed } from './addresses.ts'
import { webhookRoutes } from './routes.ts'
import { createWebhooks, type Webhooks } from './service.ts'
import { backlog } from './store.ts'

/** Throws ConfigError for a bad list of allowed addresses. */
export function createWebhooksFeature(
  context: Context,
  { secrets }: { secrets: Secrets },
): Feature & { webhooks: Webhooks } {
  const { webhook_allow, max_webhooks: max } = context.config
  const webhooks = createWebhooks({
    ...context,
    secrets,
    allowed: readAllowed(webhook_allow),
    max,
    version: pkg.version,
  })
  const { db, metrics, now } = context
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
      return [webhooks.start()]
    },
  }
}
