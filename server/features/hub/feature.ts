import type { Download } from '../../../contract/hub.ts'
import type { Plans } from '../../platform/plans.ts'
import { startWorker } from '../../platform/queue/worker.ts'
import type { Context, Feature } from '../feature.ts'
import { Downloads, queueKind } from './downloads.ts'
import { workOnDownload } from './jobs.ts'
import { trainingMachine } from './methods.ts'
import { hubRoutes } from './routes.ts'
import { Hub } from './service.ts'

export async function createHubFeature(
  { config, db, queue, notifications, events, trainingSetup, python, converters, min_free_mb, log, now }: Context,
  { plans }: { plans: Plans },
): Promise<Feature & { hub: Hub; downloads: Downloads }> {
  const { models_dir: modelsDir, model_downloads: policy, huggingface_url: url, huggingface_token: token } = config
  const states = new Map<string, Download>()
  const hub = new Hub(modelsDir, plans.pricing, {
    machine: await trainingMachine(),
    min_free_mb,
    policy,
    downloads: states,
    names: config.model_names,
    keep_original: config.keep_original_weights,
    trainingSetup,
  })
  const downloads = new Downloads({
    db,
    queue,
    notifications,
    events,
    hub,
    states,
    modelsDir,
    policy,
    min_free_mb,
    log,
    now,
  })
  const work = { downloads, hub, modelsDir, url, token, trainingSetup, python, converters, min_free_mb, log, now }
  return {
    hub,
    downloads,
    mount: (app) => hubRoutes(app, hub, downloads, plans.tiers),
    sweep: () => downloads.load(),
    start: async () => [
      // A base is the installation's: jobs of other accounts may wait for it.
      startWorker({
        queue,
        kind: queueKind,
        claims: { suspended_too: true },
        log,
        handle: (claim, signal) => workOnDownload(work, claim, signal),
      }),
    ],
  }
}
