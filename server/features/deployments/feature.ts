import type { Db } from '../../platform/db/open.ts'
import { startWorker } from '../../platform/queue/worker.ts'
import type { Context, Feature } from '../feature.ts'
import type { ModelAliases } from '../inference/index.ts'
import { deploymentRoutes } from './routes.ts'
import { Deployments, type DeploymentsNeeds } from './service.ts'
import * as store from './store.ts'

export { createGateDecision } from './gate.ts'
export { deploymentNeedsModel } from './store.ts'

/** The names of deployments, as requests find them. */
export const createAliases = (db: Db): ModelAliases => ({
  find: (account_id, name) => store.find(db, account_id, name),
  list: (account_id) => store.listAll(db, account_id),
})

export function createDeploymentsFeature(
  { db, queue, events, log, now }: Context,
  { models, inference, downloads, evaluations, usage }: DeploymentsNeeds,
): Feature & { deployments: Deployments } {
  const deployments = new Deployments({ db, queue, events, models, inference, downloads, evaluations, usage, now })
  return {
    deployments,
    mount: (app) => deploymentRoutes(app, deployments),
    start: async () => [
      startWorker({ queue, kind: store.queueKind, log, handle: (claim) => deployments.finishGate(claim) }),
    ],
  }
}
