import type { Download } from '../../../contract/hub.ts'
import type { Plans } from '../../platform/plans.ts'
import { startWorker } from '../../platform/queue/worker.ts'
import type { Context, Feature } from '../feature.ts'
import { createDownloads, type Downloads, queueKind } from './downloads.ts'
import { workOnDownload } from './jobs.ts'
import { trainingMemoryBytes } from './methods.ts'
import { hubRoutes } from './routes.ts'
import { createHub, type Hub } from './service.ts'

export async function createHubFeature(
  context: Context,
  { plans }: { plans: Plans },
): Promise<Feature & { hub: Hub; downloads: Downloads }> {
  const { models_dir: modelsDir, model_downloads: policy, huggingface_url, huggingface_token } = context.config
  const states = new Map<string, Download>()
  const names = context.config.model_names
  const hub = createHub(modelsDir, plans.pricing, {
    memory_bytes: await trainingMemoryBytes(),
    policy,
    downloads: states,
    names,
    keep_original: context.config.keep_original_weights,
    trainingSetup: context.trainingSetup,
  })
  const downloads = createDownloads({ ...context, hub, states, modelsDir, policy })
  const work = { ...context, downloads, hub, modelsDir, url: huggingface_url, token: huggingface_token }
  return {
    hub,
    downloads,
    mount: (app) => hubRoutes(app, hub, downloads, plans.tiers),
    sweep: downloads.load,
    start: async () => [
      startWorker({ ...context, kind: queueKind, handle: (claim, signal) => workOnDownload(work, claim, signal) }),
    ],
  }
}
