import type { FastifyReply } from 'fastify'
import { ApiError } from '../../../contract/errors.ts'

/** Ends answers in flight when their client leaves, or when the service stops. */
export interface Aborts {
  /** Aborts when the client disconnects, which frees its slot in the engine, and at the shutdown cutoff. */
  onDisconnect(reply: FastifyReply): AbortSignal
  /** Throws shutting_down after the cutoff, and the error itself before. */
  asShutdownError(error: unknown): never
}

/** Created once, because each new Error captures a stack trace. */
const clientLeft = new Error('the client disconnected')

export function createAborts(cutoff: AbortSignal): Aborts {
  const inFlight = new Set<AbortController>()
  cutoff.addEventListener('abort', () => {
    for (const each of inFlight) each.abort()
  })
  return {
    onDisconnect(reply) {
      const controller = new AbortController()
      inFlight.add(controller)
      reply.raw.once('close', () => {
        inFlight.delete(controller)
        if (!reply.raw.writableFinished) controller.abort(clientLeft)
      })
      return controller.signal
    },
    asShutdownError(error) {
      throw cutoff.aborted
        ? new ApiError('shutting_down', 'The service is stopping. Send the request once more in a moment.')
        : error
    },
  }
}
