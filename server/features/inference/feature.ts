import type { Limits } from '../../platform/limits/index.ts'
import type { PictureFetcher } from '../../platform/outbound/pictures.ts'
import type { Plans } from '../../platform/plans.ts'
import type { Context, Feature } from '../feature.ts'
import type { Hub } from '../hub/index.ts'
import type { TunedModels } from '../models/index.ts'
import type { Serving, ServingSet } from '../serving/index.ts'
import type { StoredCompletions } from '../stored-completions/index.ts'
import type { Usage } from '../usage/index.ts'
import { createAborts } from './gateway/aborts.ts'
import { countFailures } from './gateway/failures.ts'
import { inferenceRoutes } from './gateway/routes.ts'
import type { ModelAliases } from './resolve.ts'
import { responseRoutes } from './responses/routes.ts'
import { createResponses } from './responses/service.ts'
import { Inference } from './service.ts'

interface Needs {
  plans: Plans
  limits: Limits
  hub: Hub
  models: TunedModels
  serving: Serving
  usage: Usage
  storedCompletions: StoredCompletions
  pictureFetcher: PictureFetcher
  aliases: ModelAliases
  /** What serves the deployments that have replicas of their own, by their ids. */
  servingSets: ReadonlyMap<string, ServingSet>
}

export function createInferenceFeature(
  context: Context,
  { plans, limits, serving, hub, models, usage, storedCompletions, pictureFetcher, aliases, servingSets }: Needs,
): Feature & { inference: Inference } {
  const { db, dataDir, min_free_mb, quota, changes, metrics, now, stopDeadline } = context
  const inference = new Inference({
    engine: serving.engine,
    pools: serving.pools,
    mergedAdapters: serving.mergedAdapters,
    hub,
    models,
    usage,
    pricing: plans.pricing,
    changes,
    metrics,
    pictureFetcher,
    aliases,
    servingSets,
  })
  return {
    inference,
    mount(app) {
      const aborts = createAborts(stopDeadline)
      const failures = countFailures(app, inference, usage)
      inferenceRoutes(app, { inference, stored: storedCompletions, limits, aborts, failures })
      const responses = createResponses({ db, dataDir, min_free_mb, quota, now })
      responseRoutes(app, { inference, responses, aborts, now, failures })
    },
  }
}
