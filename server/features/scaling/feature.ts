import { existsSync } from 'node:fs'
import path from 'node:path'
import { lazy } from '../../../lib/lazy.ts'
import { runPeriodically } from '../../../lib/periodic.ts'
import { allowedCores, usableCores } from '../../../lib/usable-cores.ts'
import type { Plans } from '../../platform/plans.ts'
import type { Artifacts } from '../../platform/storage/objects/index.ts'
import type { Secrets } from '../../platform/storage/secrets.ts'
import type { Deployments } from '../deployments/index.ts'
import type { Context, Feature } from '../feature.ts'
import type { Inference } from '../inference/index.ts'
import type { TunedModels } from '../models/index.ts'
import {
  createReplicaVerification,
  engineOptions,
  type OwnReplica,
  type ServingSet,
  type WeightFiles,
} from '../serving/index.ts'
import type { Controller } from './controller.ts'
import type { Places } from './places.ts'
import { scalingRoutes } from './routes.ts'
import { configuredIn, recordDecision, ScalingService } from './service.ts'
import * as store from './store.ts'

interface Needs {
  deployments: Deployments
  inference: Inference
  models: TunedModels
  plans: Plans
  engine: { yieldsToo(engine: OwnReplica['engine']): () => void }
  secrets: Secrets
  files: WeightFiles & { artifacts: Pick<Artifacts, 'ensureLocal'> }
  /** Where what serves a deployment is put, by its id. */
  servingSets: Map<string, ServingSet>
}

/** Between looks at what scales, besides those after a change. */
const refresh_ms = 5000

/** Replicas of deployments. Nothing of it is loaded before the first deployment scales. */
export async function createScalingFeature(
  context: Context,
  { deployments, inference, models, plans, engine, secrets, files, servingSets }: Needs,
): Promise<Feature & { close(): Promise<void> }> {
  const { config, db, events, servers, notifications, metrics, dataDir, log, now } = context
  let controller: Controller | undefined

  const readGpus = async () => (config.gpu === 'none' ? [] : (await import('./gpus.ts')).readGpus())

  const loadPlaces = lazy(async (): Promise<Places> => {
    const { createPlaces } = await import('./places.ts')
    return createPlaces({
      // Within a quota, as many of the cores as it pays for.
      cores: allowedCores().slice(0, usableCores()),
      cores_per_replica: config.replica_cores,
      gpus: readGpus,
      pins: (process.env.PATH ?? '').split(path.delimiter).some((folder) => existsSync(path.join(folder, 'taskset'))),
    })
  })

  const loadController = lazy(async (): Promise<Controller> => {
    const { Controller } = await import('./controller.ts')
    log.info({ server: servers.id }, 'deployments scale in this process')
    controller = new Controller({
      files,
      dataDir,
      engine_options: engineOptions(config),
      waiting_max: config.max_waiting,
      inference,
      deployments,
      servingSets,
      places: await loadPlaces(),
      gpus: readGpus,
      verify: createReplicaVerification(models),
      yieldsToo: engine.yieldsToo,
      record: recordDecision(db, servers.id),
      now,
      log,
    })
    return controller
  })

  const ray = config.ray_address
    ? await (await import('./ray/index.ts')).createRayScaling(context, {
        deployments,
        inference,
        models,
        secrets,
        servingSets,
        configured: (chosen) => configuredIn(db, deployments, chosen),
        record: recordDecision(db, servers.id),
      })
    : undefined
  const running = () => controller
  events.on('deployment.deleted', async (trx, { id }) => {
    await store.remove(trx, id)
    return () => {
      controller?.remove(id)
      ray?.serving.remove(id)
    }
  })
  const scaling = new ScalingService({
    db,
    deployments,
    inference,
    plans,
    controller: loadController,
    running,
    ray: ray?.serving,
    rayGpus: config.ray_gpus.map(({ type }) => type),
    log,
    places: loadPlaces,
    now,
  })
  metrics.onLook(() => {
    const all = (controller?.ids() ?? []).flatMap((id) => controller?.state(id) ?? [])
    const replicas = all.flatMap((entry) => entry.replicas)
    metrics.ownReplicas.set(
      { state: 'wanted' },
      all.reduce((sum, { desired }) => sum + desired, 0),
    )
    for (const state of ['starting', 'ready', 'draining'] as const)
      metrics.ownReplicas.set({ state }, replicas.filter((replica) => replica.state() === state).length)
  })
  metrics.onScrape(async () => (await controller?.metrics()) ?? [])

  return {
    mount(app) {
      scalingRoutes(app, scaling)
      ray?.mount(app)
    },
    async start() {
      const refresh = () =>
        scaling.refresh().catch((error) => log.warn({ err: error }, 'the scaling of deployments was not read'))
      await refresh()
      // Another server process may have changed what this one scales, or which model a name serves; and a deployment
      // may have been deleted while it was read. The command line suspends accounts and tells nobody.
      notifications.on('account', () => void refresh())
      return [runPeriodically(refresh_ms, refresh, { delayed: true }), ...(ray ? [ray.serving.start()] : [])]
    },
    close: async () => controller?.close(),
  }
}
