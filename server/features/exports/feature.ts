import { startWorker } from '../../platform/queue/worker.ts'
import type { Accounts } from '../accounts/index.ts'
import type { Deployments } from '../deployments/index.ts'
import type { Context, Feature } from '../feature.ts'
import type { TunedModels } from '../models/index.ts'
import { workOnExport } from './jobs.ts'
import { createPush } from './push.ts'
import { exportRoutes } from './routes.ts'
import { Exports, queueKind } from './service.ts'

export { exportNeedsModel } from './store.ts'

export function createExportsFeature(
  context: Context,
  { accounts, models, deployments }: { accounts: Accounts; models: TunedModels; deployments: Deployments },
): Feature & { exports: Exports } {
  const { config, db, queue, artifacts, dataDir, min_free_mb, quota, trainingSetup, log, now } = context
  const { huggingface_token: token, huggingface_url: url } = config
  const push = token ? createPush({ url, token }) : undefined
  const exports = new Exports({
    db,
    queue,
    notifications: context.notifications,
    servers: context.servers,
    models,
    deployments,
    trainingSetup,
    reserve: context.reserve,
    artifacts,
    orphans: context.orphans,
    dataDir,
    min_free_mb,
    quota,
    max_waiting: config.max_waiting_jobs,
    canPush: push !== undefined,
    now,
    onExpiryFailure: (error) => log.warn({ err: error }, 'expired exports could not be removed; trying again later'),
  })
  const work = {
    db,
    queue,
    models,
    artifacts,
    dataDir,
    python: context.python,
    converters: context.converters,
    threads: context.threads,
    min_free_mb,
    quota,
    retention_days: config.export_days,
    parse_control_tokens: config.parse_control_tokens,
    log,
    push,
    acquireSlot: (id: string) => accounts.acquireSlotForWork(id),
    notifyEvents: (id: string) => exports.notifyEvents(id),
    deletionSignal: (id: string) => exports.deletionSignal(id),
    finished: (id: string) => exports.finished(id),
    now,
  }
  return {
    exports,
    mount: (app) => exportRoutes(app, exports, context.stopping),
    owned: [{ folder: 'exports', table: 'exports' }],
    sweep: () => exports.sweep(),
    start: async () => [
      exports.start(),
      startWorker({
        queue,
        kind: queueKind,
        log,
        whenReady: (signal) => trainingSetup.whenReady(signal),
        handle: (claim, _, turn) => workOnExport(work, claim, turn),
      }),
    ],
  }
}
