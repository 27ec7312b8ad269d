// Spans and log lines of requests.
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import type { Span, Tracing } from '../../../telemetry/tracing.ts'

declare module 'fastify' {
  interface FastifyRequest {
    /** Null without tracing, and of requests that are no operation of the API. */
    span: Span | null
  }
}

/**
 * Traces the requests to the API, within the trace of their header `traceparent`, and writes a log line for each that
 * has ended if `logAll` is set. Neither has a key, an address of a client, or anything of a body.
 */
export function observeRequests(app: FastifyInstance, tracing: Tracing | undefined, logAll: boolean): void {
  app.decorateRequest('span', null)
  if (!tracing && !logAll) return
  app.addHook('onRequest', (request, reply, done) => {
    const { route } = request.routeOptions.config
    if (!route) return done()
    const began = performance.now()
    const span = tracing?.start(`${route.method} ${route.path}`, {
      kind: 'server',
      parent: request.headers,
      at: began,
      attributes: { 'http.request.method': route.method, 'http.route': route.path, 'tunery.request_id': request.id },
    })
    if (span) {
      request.span = span
      request.log = request.log.child({ trace_id: span.trace_id })
    }
    // Also of a client that leaves, and of a stream that is cut.
    reply.raw.once('close', () => {
      if (logAll) logRequest(request, reply, performance.now() - began)
      if (span) endSpan(span, request, reply)
    })
    done()
  })
}

function endSpan(span: Span, { caller }: FastifyRequest, { raw }: FastifyReply): void {
  const { statusCode } = raw
  span.set({
    'http.response.status_code': statusCode,
    // A random id, which says nothing outside of this installation.
    ...(caller && { 'tunery.account_id': caller.account_id }),
    ...(!raw.writableFinished && { 'tunery.client_left': true }),
  })
  span.end(statusCode >= 500 ? { error: { code: String(statusCode) } } : {})
}

function logRequest(request: FastifyRequest, { raw }: FastifyReply, duration_ms: number): void {
  const { route } = request.routeOptions.config
  const { caller } = request
  request.log.info(
    {
      method: route!.method,
      route: route!.path,
      status: raw.statusCode,
      duration_ms: Math.round(duration_ms),
      ...(caller && { account: caller.account_id, key: caller.key_id }),
      ...(!raw.writableFinished && { client_left: true }),
    },
    'request',
  )
}
