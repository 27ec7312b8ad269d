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

export function createBatchesFeature(
  { config, db, queue, artifacts, orphans, dataDir, min_free_mb, log, now }: Context,
  { accounts, limits, files, inference }: Needs,
): Feature {
  const batches = createBatches({ db, queue, files, orphans, max_waiting: config.max_waiting_jobs, now })
  const work = { db, queue, files, inference, accounts, limits, artifacts, dataDir, min_free_mb, log, now }
  return {
    mount: (app) => batchRoutes(app, batches),
    owned: [{ folder: 'batches', table: 'batches' }],
    sweep: batches.sweep,
    start: async () => [
      startWorker({
        queue,
        log,
        kind: queueKind,
        handle: (claim, signal, turn) => workOnBatch(work, claim, signal, turn),
      }),
    ],
  }
}
