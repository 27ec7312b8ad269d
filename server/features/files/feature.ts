import type { NeededBy } from '../../platform/db/needed-by.ts'
import type { Datasets } from '../datasets/index.ts'
import type { Context, Feature } from '../feature.ts'
import { fileRoutes } from './routes.ts'
import { Files } from './service.ts'
import { Uploads } from './uploads.ts'

export function createFilesFeature(
  { config, db, artifacts, orphans, dataDir, min_free_mb, quota, now }: Context,
  { datasets, neededBy }: { datasets: Datasets; neededBy: readonly NeededBy[] },
): Feature & { files: Files; removeExpired(now: number): Promise<void> } {
  const files = new Files({ db, datasets, artifacts, dataDir, quota, neededBy, now })
  const uploads = new Uploads({
    db,
    datasets,
    files,
    artifacts,
    orphans,
    dataDir,
    max_mb: config.max_dataset_mb,
    min_free_mb,
    quota,
    now,
  })
  return {
    files,
    mount: (app) => fileRoutes(app, files, uploads),
    owned: [
      { folder: 'files', table: 'files' },
      { folder: 'uploads', table: 'uploads' },
    ],
    sweep: () => uploads.sweep(),
    async removeExpired(now) {
      await files.removeExpired(now)
      await uploads.removeExpired(now)
    },
  }
}
