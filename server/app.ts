import Fastify, { type FastifyInstance, LogController } from 'fastify'
import { serializerCompiler } from 'fastify-type-provider-zod'
import type { Logger } from 'pino'
import { ApiError } from '../contract/errors.ts'
import { clientTimeouts, maxHeadBytes } from '../lib/http/client-timeouts.ts'
import { endSlowBodies, endSlowReaders } from '../lib/http/slow-clients.ts'
import { newId } from '../lib/ids.ts'
import type { Accounts } from './features/accounts/index.ts'
import type { Feature } from './features/feature.ts'
import type { Sessions, SignInThrottle } from './features/sign-in/index.ts'
import { requireAuth, requireScopes } from './platform/http/auth.ts'
import { decodeBodies } from './platform/http/content-encoding.ts'
import { clientError, frameworkError, handleErrors, refuse } from './platform/http/errors.ts'
import { mountHealth } from './platform/http/health.ts'
import type { Idempotency } from './platform/http/idempotency.ts'
import { assumeJson, parseJsonBody } from './platform/http/json-body.ts'
import { tellKeyHeaders, validatorCompiler } from './platform/http/mount.ts'
import { describeApi } from './platform/http/openapi.ts'
import { createRequestLog } from './platform/http/request-log.ts'
import type { RunningRequests } from './platform/http/running-requests.ts'
import { addSecurityHooks, type SecuritySettings } from './platform/http/security-headers.ts'
import type { Limits } from './platform/limits/index.ts'
import type { WindowCounters } from './platform/redis/window-counter.ts'
import type { Reserve } from './platform/storage/disk-reserve.ts'
import { requestComes } from './platform/telemetry/event-loop.ts'
import type { ServerMetrics } from './platform/telemetry/metrics.ts'
import { observeRequests } from './platform/telemetry/requests.ts'
import type { Tracing } from './platform/telemetry/tracing.ts'

/** What the app needs of the services. */
interface Needs {
  accounts: Accounts
  sessions: Sessions
  signInThrottle: SignInThrottle
  windowCounters: WindowCounters
  limits: Limits
  idempotency: Idempotency
  reserve: Reserve
  running: RunningRequests
  /** The id of the installation. */
  installation: string
  features: readonly Feature[]
  log: Logger
  version: string
  /** Why the service cannot take requests now, or undefined. */
  ready(): Promise<string | undefined>
  /** What operators should know although the service takes requests. */
  warnings(): Promise<string[]>
  metrics: ServerMetrics
  tracing: Tracing | undefined
  stopping: AbortSignal
}

/** Largest JSON body in bytes. Files are streamed and have their own limit. */
const bodyLimit = 8 * 1024 * 1024

/** Mounts every route and returns the instance. It does not listen. */
export async function buildApp(
  services: Needs,
  settings: SecuritySettings & { request_log?: 'failures' | 'all' },
  { head_ms, body_ms, body_total_ms, idle_ms, unread_ms } = clientTimeouts,
): Promise<FastifyInstance> {
  const app = Fastify({
    loggerInstance: services.log,
    logController: new LogController({ disableRequestLogging: true, requestIdLogLabel: 'request_id' }),
    bodyLimit,
    // No timeout for a whole request, for the sake of large uploads; see lib/http/slow-clients.ts.
    http: { maxHeaderSize: maxHeadBytes, headersTimeout: head_ms, connectionsCheckingInterval: Math.ceil(head_ms / 5) },
    requestTimeout: 0,
    keepAliveTimeout: idle_ms,
    trustProxy: settings.trusted_proxies.length > 0 ? [...settings.trusted_proxies] : false,
    forceCloseConnections: 'idle',
    // Fastify's own 503 would not have the shape of our errors; the hook below answers instead.
    return503OnClosing: false,
    genReqId: () => newId('req'),
    requestIdHeader: false,
    childLoggerFactory: createRequestLog,
    routerOptions: { ignoreTrailingSlash: true, maxParamLength: 2000 },
    frameworkErrors: frameworkError as never,
    clientErrorHandler: clientError as never,
  }) as unknown as FastifyInstance
  app.setValidatorCompiler(validatorCompiler)
  app.setSerializerCompiler(serializerCompiler)
  await addSecurityHooks(app, settings)
  const stopSlowBodyWatch = endSlowBodies(app.server, body_ms, refuse, body_total_ms)
  const stopSlowReaderWatch = endSlowReaders(app.server, unread_ms)
  app.addHook('onClose', async () => {
    stopSlowBodyWatch()
    stopSlowReaderWatch()
  })
  observeRequests(app, services.tracing, settings.request_log === 'all')
  app.addHook('onRequest', (request, reply, done) => {
    assumeJson(request)
    requestComes(`${request.method} ${request.routeOptions.url ?? '(no route)'}`)
    if (!services.stopping.aborted || !request.routeOptions.config.route) return done()
    reply.header('connection', 'close')
    done(new ApiError('shutting_down', 'The service is stopping. Send the request once more in a moment.') as never)
  })
  tellKeyHeaders(app)
  app.removeContentTypeParser('text/plain')
  app.decorateRequest('bodyText', null)
  app.decorateRequest('formDigest', null)
  app.decorate('idempotency', services.idempotency)
  app.decorate('itemReaders', new Map())
  app.decorate('reserve', services.reserve)
  app.decorate('limits', services.limits)
  app.decorate('running', services.running)
  app.decorate('installation', services.installation)
  decodeBodies(app)
  app.addContentTypeParser('application/json', { parseAs: 'buffer' }, parseJsonBody)
  handleErrors(app, (limit) => services.metrics.limitRejections.inc({ limit }))
  requireScopes(app)
  describeApi(app, services.version)
  mountHealth(app, services.ready, services.warnings, services.metrics)
  requireAuth(
    app,
    {
      find: services.accounts.findKey,
      findAgain: services.accounts.findCallerAgain,
      findSession: (token) => services.sessions.find(token),
    },
    services.limits,
    services.signInThrottle.countRequest,
    services.windowCounters,
    settings.public_url && new URL(settings.public_url).origin,
  )
  for (const feature of services.features) feature.mount?.(app)
  await app.ready()
  return app
}
