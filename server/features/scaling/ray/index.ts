// Deployments on Ray Serve, put together from the settings.

import type { FastifyInstance } from 'fastify'
import { undefinedIf } from '../../../../contract/errors.ts'
import { createServe } from '../../../platform/ray/applications.ts'
import { createRayClient } from '../../../platform/ray/client.ts'
import { packEngine } from '../../../platform/ray/engine-application.ts'
import { createPackageUpload } from '../../../platform/ray/package.ts'
import { listeningUrl } from '../../../platform/ray/service-url.ts'
import { packVllm } from '../../../platform/ray/vllm-application.ts'
import { createWriterLock } from '../../../platform/ray/writer-lock.ts'
import type { Secrets } from '../../../platform/storage/secrets.ts'
import type { Deployments } from '../../deployments/index.ts'
import type { Context } from '../../feature.ts'
import type { Inference } from '../../inference/index.ts'
import type { TunedModels } from '../../models/index.ts'
import { createProbeCheck, type ServingSet } from '../../serving/index.ts'
import type { Decision, ScaledDeployment } from '../scaled-deployment.ts'
import * as store from '../store.ts'
import { createApplications } from './applications.ts'
import { isRay } from './instance-types.ts'
import { replicaRoutes } from './routes.ts'
import { RayServing } from './serving.ts'
import { createTargetFiles } from './target-files.ts'

interface RayScaling {
  serving: RayServing
  /** Mounts the route of the files. */
  mount(app: FastifyInstance): void
}

interface Needs {
  deployments: Pick<Deployments, 'findUnscoped'>
  inference: Pick<Inference, 'target'>
  models: Pick<TunedModels, 'expected'>
  secrets: Pick<Secrets, 'derive'>
  servingSets: Map<string, ServingSet>
  configured: (chosen: (instance_type: string) => boolean) => Promise<ScaledDeployment[]>
  record: (decision: Decision) => Promise<void>
}

export async function createRayScaling(context: Context, needs: Needs): Promise<RayScaling> {
  const { config, db, installation, servers, artifacts, now, log } = context
  const { deployments, inference, models, secrets, servingSets, configured, record } = needs
  const ray = createRayClient(config.ray_address!, config.ray_token)
  let app: FastifyInstance | undefined
  const files = createTargetFiles({ models, artifacts, models_dir: config.models_dir })
  const applications = createApplications({
    installation,
    files,
    secrets,
    engineCode: createPackageUpload(ray, packEngine),
    vllmCode: createPackageUpload(ray, packVllm),
    vllmConfig: config.ray_vllm,
    serviceUrl: () => config.ray_service_url ?? config.public_url ?? listeningUrl(app!),
    cores: config.replica_cores,
    node: config.ray_node,
    now,
  })
  const serving = new RayServing({
    serve: createServe(ray, createWriterLock(config.database_url), {
      http: { host: '0.0.0.0', port: config.ray_serve_port },
      proxy_location: 'EveryNode',
    }),
    applications,
    configured: () => configured(isRay),
    deployments,
    inference,
    servingSets,
    oncePer: servers.oncePer,
    cacheSalt: (account_id) => secrets.derive(`prefix caches of ${account_id}`),
    waiting_max: config.max_waiting,
    record,
    lastDecision: async (deployment_id) => (await store.decisions(db, deployment_id, 1))[0]?.to_replicas ?? 0,
    now,
    log,
  })
  return {
    serving,
    mount(instance) {
      app = instance
      replicaRoutes(instance, {
        applications,
        artifacts,
        files,
        probe: createProbeCheck(models, artifacts),
        async targetOf(deployment_id, model) {
          const deployment = await deployments.findUnscoped(deployment_id)
          const isGone = undefinedIf('model_not_found', 'model_not_available', 'model_not_callable')
          return deployment && (await inference.target(deployment.account_id, model).catch(isGone))
        },
      })
    },
  }
}
