import type { Limits } from '../../platform/limits/index.ts'
import { startWorker } from '../../platform/queue/worker.ts'
import type { Accounts } from '../accounts/index.ts'
import type { Context, Feature } from '../feature.ts'
import type { Files } from '../files/index.ts'
import type { Inference } from '../inference/index.ts'
import { batchRoutes } from './routes.ts'
import { createBatches, queueKind } from './service.ts'
import { workOnBatch } from './work.ts'

export { batchNeedsFile } from './store.ts'

interface Needs {
  accounts: Accounts
  limits: Limits
  files: Files
  inference: Inference
}

export function createBatchesFeature(context: Context, { accounts, limits, files, inference }: Needs): Feature {
  const batches = createBatches({ ...context, files, max_waiting: context.config.max_waiting_jobs })
  const work = { ...context, accounts, limits, files, inference }
  return {
    mount: (app) => batchRoutes(app, batches),
    owned: [{ folder: 'batches', table: 'batches' }],
    sweep: batches.sweep,
    start: async () => [
      startWorker({
        ...context,
        kind: queueKind,
        handle: (claim, signal, turn) => workOnBatch({ ...work, turn }, claim, signal),
      }),
    ],
  }
}
