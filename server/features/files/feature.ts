import type { NeededBy } from '../../platform/db/needed-by.ts'
import type { Datasets } from '../datasets/index.ts'
import type { Context, Feature } from '../feature.ts'
import { fileRoutes } from './routes.ts'
import { createFiles, type Files } from './service.ts'
import { createUploads } from './uploads.ts'

export function createFilesFeature(
  context: Context,
  { datasets, neededBy }: { datasets: Datasets; neededBy: readonly NeededBy[] },
): Feature & { files: Files; removeExpired(now: number): Promise<void> } {
  const files = createFiles({ ...context, datasets, neededBy })
  const uploads = createUploads({ ...context, datasets, files, max_mb: context.config.max_dataset_mb })
  return {
    files,
    mount: (app) => fileRoutes(app, files, uploads),
    owned: [
      { folder: 'files', table: 'files' },
      { folder: 'uploads', table: 'uploads' },
    ],
    sweep: uploads.sweep,
    async removeExpired(now) {
      await files.removeExpired(now)
      await uploads.removeExpired(now)
    },
  }
}
