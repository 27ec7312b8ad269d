import type { NeededBy } from '../../platform/db/needed-by.ts'
import type { Datasets } from '../datasets/index.ts'
import type { Context, Feature } from '../feature.ts'
import type { Hub } from '../hub/index.ts'
import { draftsFolder } from './artifacts.ts'
import { type Compare, TunedModels } from './registry.ts'
import { modelRoutes } from './routes.ts'

export { createDraftFiles, forgetDraftFiles } from './draft-files.ts'

interface Needs {
  hub: Hub
  datasets: Datasets
  /** By this machine's engine. */
  compare: Compare
  neededBy: readonly NeededBy[]
}

export function createModelsFeature(
  context: Context,
  { hub, datasets, compare, neededBy }: Needs,
): Feature & { models: TunedModels } {
  const models = new TunedModels({
    db: context.db,
    hub,
    datasets,
    artifacts: context.artifacts,
    orphans: context.orphans,
    dataDir: context.dataDir,
    trainingSetup: context.trainingSetup,
    python: context.python,
    converters: context.converters,
    threads: context.threads,
    min_free_mb: context.min_free_mb,
    max_mb: context.config.max_adapter_mb,
    quota: context.quota,
    changes: context.changes,
    events: context.events,
    compare,
    neededBy,
    log: context.log,
    now: context.now,
  })
  return {
    models,
    mount: (app) => modelRoutes(app, models),
    owned: [
      { folder: 'models', table: 'models' },
      { folder: draftsFolder, table: 'models' },
    ],
    sweep: () => models.removeForgottenDrafts(),
  }
}
