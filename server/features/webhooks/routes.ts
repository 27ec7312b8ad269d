import type { FastifyInstance } from 'fastify'
import {
  changeWebhook,
  createWebhook,
  deleteWebhook,
  getDelivery,
  getWebhook,
  listDeliveries,
  listWebhooks,
  redeliver,
  rotateSecret,
  testWebhook,
} from '../../../contract/webhooks.ts'
import { mount } from '../../platform/http/mount.ts'
import type { Webhooks } from './service.ts'

export function webhookRoutes(app: FastifyInstance, webhooks: Webhooks): void {
  mount(app, createWebhook, ({ caller, body }) => webhooks.create(caller, body))
  mount(app, listWebhooks, ({ caller, query }) => webhooks.list(caller.account_id, query))
  mount(app, getWebhook, ({ caller, params }) => webhooks.get(caller.account_id, params.webhook_id))
  mount(app, changeWebhook, ({ caller, params, body }) => webhooks.change(caller, params.webhook_id, body))
  mount(app, deleteWebhook, ({ caller, params }) => webhooks.delete(caller, params.webhook_id))
  mount(app, rotateSecret, ({ caller, params, body }) => webhooks.rotate(caller, params.webhook_id, body))
  mount(app, testWebhook, ({ caller, params }) => webhooks.test(caller, params.webhook_id))
  mount(app, listDeliveries, ({ caller, params, query }) =>
    webhooks.deliveries(caller.account_id, params.webhook_id, query),
  )
  mount(app, getDelivery, ({ caller, params }) =>
    webhooks.delivery(caller.account_id, params.webhook_id, params.delivery_id),
  )
  mount(app, redeliver, ({ caller, params }) => webhooks.redeliver(caller, params.webhook_id, params.delivery_id))
}
