import type { FastifyError, FastifyInstance, FastifyRequest } from 'fastify'
import { isResponseSerializationError } from 'fastify-type-provider-zod'
import { ApiError, errorBody } from '../../contract/errors.ts'

/** Gives every failure the one shape. What is the service's own fault says its request id and nothing of the inside. */
export function handleErrors(app: FastifyInstance): void {
  app.setErrorHandler((error: FastifyError | ApiError, request, reply) => {
    const known = toApiError(error, request)
    if (known.status >= 500) request.log.error({ err: error }, 'a request failed')
    if (known.status === 503) reply.header('retry-after', '1')
    if (known.status === 401) reply.header('www-authenticate', 'Bearer')
    if (known.status === 413 || known.code === 'not_multipart') reply.header('connection', 'close')
    return reply.status(known.status).send(errorBody(known, request.routeOptions.config.route?.openai ?? false))
  })
  app.setNotFoundHandler((request, reply) => {
    const error = new ApiError('not_found', `There is no ${request.method} ${request.url.split('?')[0]}. The operations are listed at /docs.`)
    return reply.status(404).send(errorBody(error, /^\/(api\/)?v1\/(chat|completions|embeddings|models)/.test(request.url)))
  })
}

function toApiError(error: FastifyError | ApiError, request: FastifyRequest): ApiError {
  if (error instanceof ApiError) return error
  if (!isResponseSerializationError(error)) {
    switch (error.code) {
      case 'FST_ERR_CTP_INVALID_JSON_BODY':
      case 'FST_ERR_CTP_EMPTY_JSON_BODY':
        return new ApiError('invalid_json', `The body is not valid JSON: ${error.message}`)
      case 'FST_ERR_CTP_INVALID_MEDIA_TYPE':
        return request.routeOptions.config.route?.consumes
          ? new ApiError('not_multipart', 'Send the file as multipart/form-data with a part named `file`.')
          : new ApiError('unsupported_media_type', 'Send the body as JSON with `Content-Type: application/json`.')
      case 'FST_ERR_CTP_BODY_TOO_LARGE':
        return new ApiError('body_too_large', 'The body is larger than this operation takes.')
    }
    if (error.statusCode && error.statusCode >= 400 && error.statusCode < 500) return new ApiError('invalid_request', error.message)
    if (['ENOSPC', 'EDQUOT', 'SQLITE_FULL'].includes(error.code))
      return new ApiError('storage_full', 'The disk of the service is full. Nothing was stored; try again when there is room.')
  }
  return new ApiError('internal_error', `Something failed inside the service. Its log has the cause under the request id ${request.id}.`, {
    details: { request_id: request.id },
  })
}
