import { startWorker } from '../../platform/queue/worker.ts'
import type { Context, Feature } from '../feature.ts'
import { deploymentRoutes } from './routes.ts'
import { createDeployments, type Deployments, type DeploymentsNeeds, queueKind } from './service.ts'

export { deploymentNeedsModel } from './store.ts'

export function createDeploymentsFeature(
  context: Context,
  needs: DeploymentsNeeds,
): Feature & { deployments: Deployments } {
  const deployments = createDeployments({ ...context, ...needs })
  return {
    deployments,
    mount: (app) => deploymentRoutes(app, deployments),
    start: async () => [startWorker({ ...context, kind: queueKind, handle: (claim) => deployments.finishGate(claim) })],
  }
}
