import type { FastifyInstance } from 'fastify'
import type { ServerMetrics } from '../telemetry/metrics.ts'

/** Mounts liveness, readiness and Prometheus metrics. They need no key and reveal nothing about accounts. */
export function mountHealth(
  app: FastifyInstance,
  ready: () => Promise<string | undefined>,
  warnings: () => Promise<string[]>,
  metrics: ServerMetrics,
): void {
  const { requestSeconds, requestsInFlight } = metrics
  app.addHook('onRequest', (request, reply, done) => {
    if (request.routeOptions.config.route) {
      requestsInFlight.inc()
      // Also of a client that leaves, and of a stream that is cut.
      reply.raw.once('close', () => requestsInFlight.dec())
    }
    done()
  })
  app.addHook('onResponse', (request, reply, done) => {
    const { route } = request.routeOptions.config
    if (route)
      requestSeconds.observe(
        { method: route.method, route: route.path, status: reply.statusCode },
        reply.elapsedTime / 1000,
      )
    done()
  })
  const hidden = { schema: { hide: true }, logLevel: 'warn' } as const
  app.get('/health/live', hidden, async () => ({ status: 'ok' }))
  app.get('/health/ready', hidden, async (_request, reply) => {
    const reason = await ready()
    if (reason) return reply.status(503).send({ status: 'unavailable', reason })
    // Not a reason to take no requests: every server shares the storage, and would leave the load balancer at once.
    const problems = await warnings()
    return problems.length > 0 ? { status: 'ok', warnings: problems } : { status: 'ok' }
  })
  app.get('/metrics', hidden, async (_request, reply) => reply.type(metrics.contentType).send(await metrics.text()))
}
