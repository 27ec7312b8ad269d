import type { FastifyInstance } from 'fastify'
import {
  datasetOfStored,
  deleteManyStored,
  deleteStored,
  getStored,
  listStored,
  listStoredMessages,
  updateStored,
} from '../../../contract/stored-completions.ts'
import { mount } from '../../platform/http/mount.ts'
import type { StoredCompletions } from './service.ts'

export function storedCompletionRoutes(app: FastifyInstance, stored: StoredCompletions): void {
  mount(app, listStored, ({ caller, query }) => stored.list(caller.account_id, query))
  mount(app, getStored, ({ caller, params }) => stored.get(caller.account_id, params.completion_id))
  mount(app, listStoredMessages, ({ caller, params, query }) =>
    stored.messages(caller.account_id, params.completion_id, query),
  )
  mount(app, updateStored, ({ caller, params, body }) =>
    stored.update(caller, params.completion_id, body.metadata ?? {}),
  )
  mount(app, deleteStored, ({ caller, params }) => stored.delete(caller, params.completion_id))
  mount(app, deleteManyStored, ({ caller, body }) => stored.deleteMany(caller, body.filter))
  mount(app, datasetOfStored, ({ caller, body }) => stored.toDataset(caller, body))
}
