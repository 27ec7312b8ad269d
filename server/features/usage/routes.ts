import type { FastifyInstance } from 'fastify'
import { getOperatorUsage } from '../../../contract/machine.ts'
import { getTimeline } from '../../../contract/timeline.ts'
import { getStorage, getThresholds, getUsage, type StorageReport, setThresholds } from '../../../contract/usage.ts'
import type { Caller } from '../../platform/http/caller.ts'
import { mount } from '../../platform/http/mount.ts'
import type { Usage } from './service.ts'

export function usageRoutes(
  app: FastifyInstance,
  usage: Usage,
  storageOf: (caller: Caller) => Promise<StorageReport>,
): void {
  mount(app, getUsage, ({ caller, query }) => usage.report(caller.account_id, query))
  mount(app, getStorage, ({ caller }) => storageOf(caller))
  mount(app, getTimeline, ({ caller, query: { model, ...period } }) => usage.timeline(caller.account_id, model, period))
  mount(app, getOperatorUsage, ({ query }) => usage.accounts(query.day))
  mount(app, getThresholds, ({ caller }) => usage.thresholds(caller.account_id))
  mount(app, setThresholds, ({ caller, body }) => usage.setThresholds(caller, body))
}
