import type { FastifyReply } from 'fastify'
import { ApiError } from '../../../../contract/errors.ts'
import { watchCredential } from '../../../platform/http/running-requests.ts'

/** Ends answers in flight when their client leaves, when their key or session ends, or when the service stops. */
export interface Aborts {
  /**
   * Aborts when the client disconnects, which frees its slot in the engine; with an ApiError when the key or session of
   * the request ends, and at the shutdown cutoff.
   */
  forRequest(reply: FastifyReply): AbortSignal
  /** The same for requests of another credential. `watch` calls `end` when it ends, and returns what stops watching. */
  onEnd(reply: FastifyReply, watch: (end: (error: ApiError) => void) => () => void): AbortSignal
  /** Returns what throws the signal's ApiError, if it aborted with one, and else the error itself. */
  asReason(signal: AbortSignal): (error: unknown) => never
}

/** Created once, because each new Error captures a stack trace. */
const clientLeft = new Error('the client disconnected')

export function createAborts(cutoff: AbortSignal): Aborts {
  const inFlight = new Set<AbortController>()
  cutoff.addEventListener('abort', () => {
    const error = new ApiError('shutting_down', 'The service is stopping. Send the request once more in a moment.')
    for (const controller of inFlight) controller.abort(error)
  })
  const aborts: Aborts = {
    forRequest: (reply) => aborts.onEnd(reply, (end) => watchCredential(reply.request, end)),
    onEnd(reply, watch) {
      const controller = new AbortController()
      inFlight.add(controller)
      const stopWatching = watch((error) => controller.abort(error))
      reply.raw.once('close', () => {
        inFlight.delete(controller)
        stopWatching()
        if (!reply.raw.writableFinished) controller.abort(clientLeft)
      })
      return controller.signal
    },
    asReason: (signal) => (error) => {
      throw signal.reason instanceof ApiError ? signal.reason : error
    },
  }
  return aborts
}
