import type { FastifyInstance } from 'fastify'
import {
  cancelDownload,
  getHubMachine,
  getModel,
  listFeatured,
  listModels,
  listTiers,
  startDownload,
  type Tier,
} from '../../../contract/hub.ts'
import { mount } from '../../platform/http/mount.ts'
import type { Downloads } from './downloads.ts'
import { filterModels } from './filter.ts'
import type { Hub } from './service.ts'

export function hubRoutes(app: FastifyInstance, hub: Hub, downloads: Downloads, tiers: readonly Tier[]): void {
  mount(app, listModels, async ({ query }) => ({ models: filterModels(hub.list(), query) }))
  mount(app, getHubMachine, async () => hub.machine())
  mount(app, listTiers, async () => ({ tiers: [...tiers] }))
  mount(app, listFeatured, async () => ({ models: hub.featured() }))
  mount(app, getModel, async ({ params }) => hub.get(params.model_id))
  mount(app, startDownload, ({ caller, params }) => downloads.start(caller, params.model_id))
  mount(app, cancelDownload, ({ caller, params }) => downloads.cancel(caller, params.model_id))
}
