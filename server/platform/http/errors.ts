import type { FastifyError, FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { isResponseSerializationError } from 'fastify-type-provider-zod'
import { ApiError, errorBody } from '../../../contract/errors.ts'
import { createRefusals, drain } from '../../../lib/http/refusals.ts'
import { newId } from '../../../lib/ids.ts'
import { storageError } from '../storage/durable-files.ts'
import { setSecurityHeaders } from './security-headers.ts'

/**
 * Answers every failure in one shape. Internal errors carry the request id and no details of the cause. `onRefused`
 * gets the name of the limit that a request has met.
 */
export function handleErrors(app: FastifyInstance, onRefused: (limit: string) => void = () => {}): void {
  app.setErrorHandler(async (error: FastifyError | ApiError, request, reply) => {
    const refusal = toApiError(error, request)
    // A client that disconnected is not a failure of the service.
    const hungUp = reply.raw.destroyed || (error as FastifyError).code === 'ECONNRESET'
    // Nor is a wait for set-up, which has its own lines.
    const expected = hungUp || refusal.code === 'training_not_ready'
    if (refusal.code === 'rate_limit_exceeded') onRefused(String(refusal.details?.limit ?? 'other'))
    if (refusal.code === 'overloaded') onRefused('overloaded')
    // A full queue is one line without a stack: who fills it must not fill the log too.
    if (refusal.code === 'overloaded') request.log.warn({ reason: refusal.message }, 'a request found a queue full')
    else if (refusal.status >= 500 && !expected) request.log.error({ err: error }, 'a request failed')
    const wait_seconds = refusal.details?.retry_after_seconds
    if (refusal.status === 503 || refusal.status === 429) reply.header('retry-after', String(wait_seconds ?? 1))
    else if (refusal.status > 500 && wait_seconds !== undefined) reply.header('retry-after', String(wait_seconds))
    if (isPermanent(refusal.status)) reply.header('x-should-retry', 'false')
    if (refusal.status === 401) reply.header('www-authenticate', 'Bearer')
    if (refusal.status === 413 || request.routeOptions.config.route?.consumes) {
      // The rest of the body is unread, so the connection cannot be reused. Drain it: some clients read the answer only
      // after they have sent the whole body.
      reply.header('connection', 'close')
      await drain(request.raw)
    }
    return reply.status(refusal.status).send(errorBody(refusal, request.routeOptions.config.route?.openai ?? false))
  })
  app.setNotFoundHandler((request, reply) => {
    const path = request.url.split('?')[0]!.slice(0, maxPath)
    const error = new ApiError(
      'not_found',
      `There is no ${request.method} ${path}. The operations are listed at /docs.`,
    )
    return reply.status(404).send(errorBody(error, isOpenaiPath(request.url)))
  })
}

/** Longest part of an address that an error repeats. */
const maxPath = 300

const openaiPath = new RegExp(
  '^/(api/)?v1/(chat|completions|embeddings|models|files|uploads|fine_tuning|batches|responses|conversations|evals|' +
    'webhook_endpoints|webhook_event_types|images|audio|moderations|vector_stores|assistants|threads|realtime|' +
    'containers)\\b',
)
/** Whether OpenAI's API has paths that begin like this one: its clients read the type and param of an error. */
const isOpenaiPath = (url: string) => openaiPath.test(url)

/** Whether a retry of the same request would fail again; the header tells OpenAI's clients not to retry. */
const isPermanent = (status: number) =>
  status >= 400 && status < 500 && status !== 408 && status !== 409 && status !== 429

/** Answers errors that Fastify raises before it finds a route, in the same shape. */
export function frameworkError(error: FastifyError, request: FastifyRequest, reply: FastifyReply): void {
  const refusal = new ApiError('invalid_request', `The address is not valid: ${error.message.slice(0, maxPath)}`)
  setSecurityHeaders(reply)
  void reply.status(refusal.status).send(errorBody(refusal, isOpenaiPath(request.raw.url ?? '')))
}

export const { refuse, clientError } = createRefusals(() => newId('req'))

function toApiError(error: FastifyError | ApiError, request: FastifyRequest): ApiError {
  if (error instanceof ApiError) return error
  if (!isResponseSerializationError(error)) {
    switch (error.code) {
      case 'FST_ERR_CTP_INVALID_MEDIA_TYPE':
        return request.routeOptions.config.route?.consumes
          ? new ApiError('not_multipart', 'Send the file as multipart/form-data with a part named `file`.')
          : new ApiError('unsupported_media_type', 'Send the body as JSON with `Content-Type: application/json`.')
      case 'FST_ERR_CTP_BODY_TOO_LARGE':
        return new ApiError('body_too_large', 'The body is larger than this operation takes.')
    }
    if (error.statusCode && error.statusCode >= 400 && error.statusCode < 500)
      return new ApiError('invalid_request', error.message)
    const storage = storageError(error)
    if (storage) return storage
  }
  return new ApiError(
    'internal_error',
    `Something failed inside the service. Its log has the cause under the request id ${request.id}.`,
    { details: { request_id: request.id } },
  )
}
