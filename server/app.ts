import Fastify, { type FastifyInstance, LogController } from 'fastify'
import { serializerCompiler } from 'fastify-type-provider-zod'
import type { Logger } from 'pino'
import { ApiError } from '../contract/errors.ts'
import { maxHeadBytes, patience } from '../lib/http/client-timeouts.ts'
import { endSlowBodies, endSlowReaders } from '../lib/http/slow-clients.ts'
import { newId } from '../lib/ids.ts'
import { accountRoutes } from './accounts/routes.ts'
import type { Accounts } from './accounts/service.ts'
import { datasetRoutes } from './datasets/routes.ts'
import type { Datasets } from './datasets/service.ts'
import { deploymentRoutes } from './deployments/routes.ts'
import type { Deployments } from './deployments/service.ts'
import { exportRoutes } from './exports/routes.ts'
import type { Exports } from './exports/service.ts'
import type { TunedModels } from './fine-tuning/models/registry.ts'
import { tuningRoutes } from './fine-tuning/routes.ts'
import type { Tuning } from './fine-tuning/service.ts'
import { admitRequests, requireScopes } from './http/auth.ts'
import { clientError, frameworkError, handleErrors, refuse } from './http/errors.ts'
import { type Gauge, mountHealth } from './http/health.ts'
import type { Idempotency } from './http/idempotency.ts'
import { assumeJson, parseJsonBody } from './http/json-body.ts'
import { validatorCompiler } from './http/mount.ts'
import { describeApi } from './http/openapi.ts'
import { type GuardSettings, guard } from './http/security-headers.ts'
import type { Downloads } from './hub/downloads.ts'
import { hubRoutes } from './hub/routes.ts'
import type { Hub } from './hub/service.ts'
import { inferenceRoutes } from './inference/gateway/routes.ts'
import type { Inference } from './inference/service.ts'
import type { Limits } from './limits/service.ts'
import type { Plans } from './plans.ts'
import type { Reserve } from './storage/disk-space.ts'
import { usageRoutes } from './usage/routes.ts'
import type { Usage } from './usage/service.ts'
import { webhookRoutes } from './webhooks/routes.ts'
import type { Webhooks } from './webhooks/service.ts'

export interface Services {
  accounts: Accounts
  plans: Plans
  limits: Limits
  idempotency: Idempotency
  reserve: Reserve
  hub: Hub
  downloads: Downloads
  datasets: Datasets
  tuning: Tuning
  models: TunedModels
  usage: Usage
  inference: Inference
  deployments: Deployments
  exports: Exports
  webhooks: Webhooks
  log: Logger
  version: string
  /** Why the service cannot take requests now, or undefined. */
  ready(): Promise<string | undefined>
  /** What /metrics tells beside the requests. */
  gauges: Gauge[]
  /** Aborts when the service begins to stop: streams that would never end by themselves end then. */
  stopping: AbortSignal
  /** Aborts when the time to stop is over: answers under way end with an error event. */
  cutting: AbortSignal
}

/** Largest JSON body, in bytes; files are streamed and have a limit of their own. */
const bodyLimit = 8 * 1024 * 1024

/** Mounts every route and returns the instance. It does not listen. */
export async function buildApp(
  services: Services,
  settings: GuardSettings,
  { head_ms, body_ms, idle_ms, unread_ms } = patience,
): Promise<FastifyInstance> {
  const app = Fastify({
    loggerInstance: services.log,
    logController: new LogController({ disableRequestLogging: true }),
    bodyLimit,
    // The whole request has no time of its own: large uploads take as long as they take. See lib/http/slow-clients.ts.
    http: { maxHeaderSize: maxHeadBytes, headersTimeout: head_ms, connectionsCheckingInterval: Math.ceil(head_ms / 5) },
    requestTimeout: 0,
    keepAliveTimeout: idle_ms,
    trustProxy: settings.trusted_proxies.length > 0 ? [...settings.trusted_proxies] : false,
    forceCloseConnections: 'idle',
    // It would be of another shape than every other error; the hook below says it in ours.
    return503OnClosing: false,
    genReqId: () => newId('req'),
    requestIdHeader: false,
    routerOptions: { ignoreTrailingSlash: true, maxParamLength: 2000 },
    frameworkErrors: frameworkError as never,
    clientErrorHandler: clientError as never,
  }) as unknown as FastifyInstance
  app.setValidatorCompiler(validatorCompiler)
  app.setSerializerCompiler(serializerCompiler)
  await guard(app, settings)
  const restSlowBodies = endSlowBodies(app.server, body_ms, refuse)
  const restSlowReaders = endSlowReaders(app.server, unread_ms)
  app.addHook('onClose', async () => {
    restSlowBodies()
    restSlowReaders()
  })
  app.addHook('onRequest', (request, reply, done) => {
    assumeJson(request)
    if (!services.stopping.aborted || !request.routeOptions.config.route) return done()
    reply.header('connection', 'close')
    done(new ApiError('shutting_down', 'The service is stopping. Send the request once more in a moment.') as never)
  })
  app.removeContentTypeParser('text/plain')
  app.decorateRequest('bodyText', null)
  app.decorateRequest('formDigest', null)
  app.decorate('idempotency', services.idempotency)
  app.decorate('reserve', services.reserve)
  app.addContentTypeParser('application/json', { parseAs: 'buffer' }, parseJsonBody)
  handleErrors(app)
  requireScopes(app)
  await describeApi(app, services.version)
  mountHealth(app, services.ready, services.gauges)
  admitRequests(app, { find: services.accounts.findKey }, services.limits)
  accountRoutes(app, services.accounts)
  hubRoutes(app, services.hub, services.downloads, services.plans.tiers)
  usageRoutes(app, services.usage)
  datasetRoutes(app, services.datasets, services.stopping)
  tuningRoutes(app, services.tuning, services.models, services.stopping)
  inferenceRoutes(app, services.inference, services.limits, services.cutting)
  deploymentRoutes(app, services.deployments)
  exportRoutes(app, services.exports, services.stopping)
  webhookRoutes(app, services.webhooks)
  await app.ready()
  return app
}
