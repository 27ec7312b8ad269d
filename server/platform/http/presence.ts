import type { FastifyReply } from 'fastify'
import { ApiError } from '../../../contract/errors.ts'
import { watchCredential } from './running-requests.ts'

/** Aborts when the client hangs up, when the key or session of its request ends, and when the service stops. */
export function presence(reply: FastifyReply, stopping: AbortSignal): AbortSignal {
  const gone = new AbortController()
  const stopWatching = watchCredential(reply.request, (error) => gone.abort(error))
  reply.raw.once('close', () => {
    stopWatching()
    gone.abort()
  })
  const stop = () =>
    gone.abort(new ApiError('shutting_down', 'The service is stopping. Send the request once more in a moment.'))
  stopping.addEventListener('abort', stop, { signal: gone.signal })
  if (stopping.aborted) stop()
  return gone.signal
}
