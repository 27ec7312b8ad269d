import type { FastifyInstance } from 'fastify'
import client from 'prom-client'

/** A metric whose value is read at each scrape. */
export interface Gauge {
  name: string
  help: string
  read(): number
}

/** Mounts liveness, readiness and Prometheus metrics. They need no key and reveal nothing about accounts. */
export function mountHealth(
  app: FastifyInstance,
  ready: () => Promise<string | undefined>,
  warnings: () => Promise<string[]>,
  gauges: readonly Gauge[],
): void {
  const registry = new client.Registry()
  client.collectDefaultMetrics({ register: registry })
  const requestSeconds = new client.Histogram({
    name: 'tunery_http_request_seconds',
    help: 'Seconds from a request to the end of its answer.',
    labelNames: ['method', 'route', 'status'],
    buckets: [0.005, 0.02, 0.1, 0.5, 2, 10, 60],
    registers: [registry],
  })
  for (const { name, help, read } of gauges)
    new client.Gauge({
      name,
      help,
      registers: [registry],
      collect() {
        this.set(read())
      },
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
    const found = await warnings()
    return found.length > 0 ? { status: 'ok', warnings: found } : { status: 'ok' }
  })
  app.get('/metrics', hidden, async (_request, reply) =>
    reply.type(registry.contentType).send(await registry.metrics()),
  )
}
