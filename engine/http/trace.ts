// The span of a request in the engine, and the ids that its log lines carry.
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Span, Tracing } from '../../telemetry/tracing.ts'

export interface LogIds {
  request_id?: string
  trace_id?: string
}

const spans = new WeakMap<IncomingMessage, Span>()

/**
 * Begins the span of a request, within the trace of its header, until its response has ended or its client has left.
 */
export function beginSpan(tracing: Tracing, request: IncomingMessage, response: ServerResponse, route: string): void {
  const span = tracing.start(`POST ${route}`, {
    kind: 'server',
    parent: request.headers,
    attributes: {
      'http.request.method': 'POST',
      'http.route': route,
      'tunery.request_id': String(response.getHeader('x-request-id')),
    },
  })
  spans.set(request, span)
  response.once('close', () => {
    const { statusCode } = response
    span.set({
      'http.response.status_code': statusCode,
      ...(!response.writableFinished && { 'tunery.client_left': true }),
    })
    span.end(statusCode >= 500 ? { error: { code: String(statusCode) } } : {})
  })
}

export const spanOf = (request: IncomingMessage): Span | undefined => spans.get(request)

export function idsOf(request: IncomingMessage, response: ServerResponse): LogIds {
  const trace_id = spanOf(request)?.trace_id
  return { request_id: String(response.getHeader('x-request-id')), ...(trace_id && { trace_id }) }
}
