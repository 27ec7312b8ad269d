import type { FastifyInstance } from 'fastify'
import { cancelBatch, createBatch, getBatch, listBatches } from '../../../contract/batches.ts'
import { mount } from '../../platform/http/mount.ts'
import type { Batches } from './service.ts'

export function batchRoutes(app: FastifyInstance, batches: Batches): void {
  mount(app, createBatch, ({ caller, body }) => batches.create(caller, body))
  mount(app, listBatches, ({ caller, query }) => batches.list(caller.account_id, query))
  mount(app, getBatch, ({ caller, params }) => batches.get(caller.account_id, params.batch_id))
  mount(app, cancelBatch, ({ caller, params }) => batches.cancel(caller, params.batch_id))
}
