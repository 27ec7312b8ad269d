import type { FastifyInstance } from 'fastify'
import {
  AdapterFields,
  changeTunedModel,
  deleteTunedModel,
  getTunedModel,
  listTunedModels,
  uploadAdapter,
} from '../../../contract/models.ts'
import { mount } from '../../platform/http/mount.ts'
import { readMultipart } from '../../platform/http/multipart.ts'
import type { TunedModels } from './registry.ts'

export function modelRoutes(app: FastifyInstance, models: TunedModels): void {
  mount(app, uploadAdapter, ({ request, caller }) =>
    readMultipart(request, AdapterFields, (form) => models.importAdapter(caller, form)),
  )
  mount(app, listTunedModels, ({ caller, query }) => models.list(caller.account_id, query))
  mount(app, getTunedModel, ({ caller, params }) => models.get(caller.account_id, params.model_id))
  mount(app, changeTunedModel, ({ caller, params, body }) => models.label(caller, params.model_id, body))
  mount(app, deleteTunedModel, ({ caller, params }) => models.delete(caller, params.model_id))
}
