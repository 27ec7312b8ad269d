import { runPeriodically } from '../../../lib/periodic.ts'
import type { Datasets } from '../datasets/index.ts'
import type { Context, Feature } from '../feature.ts'
import { storedCompletionRoutes } from './routes.ts'
import { StoredCompletions } from './service.ts'

/** How long deleted answers may stay in the write-ahead log, unless a reader needs it. */
const emptyWal_ms = 30_000

export function createStoredCompletionsFeature(
  { config, db, dataDir, min_free_mb, quota, log, now }: Context,
  { datasets }: { datasets: Datasets },
): Feature & { storedCompletions: StoredCompletions } {
  const days = config.store_completions
  const storedCompletions = new StoredCompletions({ db, datasets, dataDir, min_free_mb, quota, days, log, now })
  return {
    storedCompletions,
    mount: (app) => storedCompletionRoutes(app, storedCompletions),
    start: async () => [runPeriodically(emptyWal_ms, () => storedCompletions.emptyWal())],
  }
}
