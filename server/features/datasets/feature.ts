import type { PictureFetcher } from '../../platform/outbound/pictures.ts'
import type { ClaimOptions } from '../../platform/queue/turns.ts'
import { startWorker } from '../../platform/queue/worker.ts'
import type { Context, Feature } from '../feature.ts'
import { defaultBase } from '../hub/index.ts'
import { prepareDataset, queueKind } from './prepare.ts'
import { datasetRoutes } from './routes.ts'
import { Datasets, type DatasetsOptions } from './service.ts'
import { createTokens } from './tokens.ts'

type Needs = Pick<DatasetsOptions, 'hub' | 'neededBy' | 'forgetDerived' | 'onUploaded'> & {
  pictureFetcher: PictureFetcher
}

export function createDatasetsFeature(
  context: Context,
  { hub, pictureFetcher, neededBy, forgetDerived, onUploaded }: Needs,
): Feature & { datasets: Datasets } {
  const { config, db, queue, artifacts, dataDir, min_free_mb, log } = context
  const { max_dataset_mb: max_mb, max_dataset_rows: max_rows, huggingface_url, parse_control_tokens } = config
  const datasets = new Datasets({
    db,
    queue,
    notifications: context.notifications,
    hub,
    tokens: createTokens({ python: context.python, trainingSetup: context.trainingSetup, parse_control_tokens }),
    artifacts,
    dataDir,
    max_mb,
    max_rows,
    min_free_mb,
    quota: context.quota,
    neededBy,
    forgetDerived,
    onUploaded,
    defaultBase,
    now: context.now,
  })
  const work = {
    db,
    queue,
    servers: context.servers,
    artifacts,
    dataDir,
    max_rows,
    max_bytes: 4e6 * max_mb,
    min_free_mb,
    quota: context.quota,
    huggingface_url,
    hubToken: (id: string) => datasets.uploads.hubToken(id),
    pictureFetcher,
    log,
    deletionSignal: (id: string) => datasets.deletionSignal(id),
    notifyPrepared: (id: string) => datasets.notifyPrepared(id),
  }
  const startOne = (name: string, claims: ClaimOptions = {}) =>
    startWorker({
      queue,
      log,
      kind: queueKind,
      name,
      claims,
      handle: (claim, signal) => prepareDataset(work, claim, signal),
    })
  return {
    datasets,
    mount: (app) => datasetRoutes(app, datasets, context.stopping),
    owned: [{ folder: 'datasets', table: 'datasets' }],
    // Two workers, so that a slow download does not delay the next file, and one that two of an account do not take
    // too.
    start: async () => [startOne('a'), startOne('b'), startOne('c', { idle_accounts_only: true })],
  }
}
