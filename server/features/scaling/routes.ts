import type { FastifyInstance } from 'fastify'
import { deleteScaling, getScaling, putScaling } from '../../../contract/scaling.ts'
import { mount } from '../../platform/http/mount.ts'
import type { ScalingService } from './service.ts'

export function scalingRoutes(app: FastifyInstance, scaling: ScalingService): void {
  mount(app, putScaling, ({ caller, params, body }) => scaling.put(caller, params.name, body))
  mount(app, getScaling, ({ caller, params }) => scaling.get(caller.account_id, params.name))
  mount(app, deleteScaling, ({ caller, params }) => scaling.delete(caller, params.name))
}
