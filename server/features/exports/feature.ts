import { startWorker } from '../../platform/queue/worker.ts'
import type { Accounts } from '../accounts/index.ts'
import type { Deployments } from '../deployments/index.ts'
import type { Context, Feature } from '../feature.ts'
import type { TunedModels } from '../models/index.ts'
import { workOnExport } from './jobs.ts'
import { createPush } from './push.ts'
import { exportRoutes } from './routes.ts'
import { createExports, type Exports, queueKind } from './service.ts'

export { exportNeedsModel } from './store.ts'

export function createExportsFeature(
  context: Context,
  { accounts, models, deployments }: { accounts: Accounts; models: TunedModels; deployments: Deployments },
): Feature & { exports: Exports } {
  const {
    huggingface_token: token,
    huggingface_url: url,
    max_waiting_jobs,
    export_days,
    parse_control_tokens,
  } = context.config
  const push = token ? createPush({ url, token }) : undefined
  const exports = createExports({
    ...context,
    models,
    deployments,
    max_waiting: max_waiting_jobs,
    canPush: push !== undefined,
    onExpiryFailure: (error) =>
      context.log.warn({ err: error }, 'expired exports could not be removed; trying again later'),
  })
  const work = {
    ...context,
    ...exports,
    models,
    push,
    retention_days: export_days,
    parse_control_tokens,
    acquireSlot: accounts.acquireSlotForWork,
  }
  return {
    exports,
    mount: (app) => exportRoutes(app, exports, context.stopping),
    owned: [{ folder: 'exports', table: 'exports' }],
    sweep: exports.sweep,
    start: async () => [
      exports.start(),
      startWorker({
        ...context,
        kind: queueKind,
        whenReady: context.trainingSetup.whenReady,
        handle: (claim, signal) => workOnExport(work, claim, signal),
      }),
    ],
  }
}
