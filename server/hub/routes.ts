import type { FastifyInstance } from 'fastify'
import { getModel, listFeatured, listModels, listTiers, type Tier } from '../../contract/hub.ts'
import { mount } from '../http/mount.ts'
import type { Hub } from './service.ts'

export function hubRoutes(app: FastifyInstance, hub: Hub, tiers: readonly Tier[]): void {
  mount(app, listModels, async () => ({ models: hub.list() }))
  mount(app, listTiers, async () => ({ tiers: [...tiers] }))
  mount(app, listFeatured, async () => ({ models: hub.featured() }))
  mount(app, getModel, async ({ params }) => hub.get(params.model_id))
}
