// A request as a user of a model, whose memory must stay until the request has ended.
import type { ServerResponse } from 'node:http'
import { ApiError } from '../../../contract/errors.ts'
import type { ServedModel } from '../../models/models.ts'
import { sendError } from '../io.ts'

export type Use = {
  /** Has the client left, or the model been taken away? */
  ended(): boolean
  /** Aborts with it. */
  signal: AbortSignal
  /** How to stop what the request has started, and how to tell its client why. */
  cancelWith(cancel: () => void, onError: (error: ApiError) => void): void
  end(): void
  /**
   * Keeps the model's memory while the request is prepared, also when its client leaves meanwhile. To be let go once.
   */
  hold(): () => void
}

/**
 * Counts a request as a user of the model until it has ended, its client has left, or an unload will wait no longer.
 */
export function useModel(served: ServedModel, response: ServerResponse): Use {
  const gone = new AbortController()
  let ended = false
  let cancel = () => {}
  let fail: (error: ApiError) => void = (error) => sendError(response, error)
  let holds = 1
  served.users++
  const letGo = () => {
    if (--holds === 0) served.users--
    served.used_at_ms = performance.now()
  }
  const end = () => {
    if (ended) return
    ended = true
    letGo()
    response.off('close', abandon)
    served.closing.signal.removeEventListener('abort', onClosing)
    gone.abort()
  }
  const abandon = () => {
    cancel()
    end()
  }
  const onClosing = () => {
    cancel()
    fail(new ApiError('engine_unavailable', 'The model was unloaded.'))
    end()
  }
  response.on('close', abandon)
  served.closing.signal.addEventListener('abort', onClosing)
  return {
    hold() {
      holds++
      return letGo
    },
    end,
    ended: () => ended,
    signal: gone.signal,
    cancelWith(how, onError) {
      cancel = how
      fail = onError
    },
  }
}
