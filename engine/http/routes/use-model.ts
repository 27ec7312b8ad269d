// Reference counting of a model by requests: its memory stays until the last request has ended.
import type { ServerResponse } from 'node:http'
import { ApiError } from '../../../contract/errors.ts'
import type { ServedModel } from '../../models/models.ts'
import { sendError } from '../io.ts'

export interface ModelUse {
  /** Whether the request has ended: finished, client disconnected, or model unloaded. */
  ended(): boolean
  /** Aborts when the request ends. */
  signal: AbortSignal
  /** Sets how to cancel the running work, and how to report an unload to the client. */
  cancelWith(cancel: () => void, onError: (error: ApiError) => void): void
  end(): void
  /**
   * Keeps the model's memory while the request is prepared, even if the client disconnects. Call the returned function
   * once.
   */
  retain(): () => void
}

/** References the model until the request ends, its client disconnects, or an unload stops waiting. */
export function useModel(served: ServedModel, response: ServerResponse): ModelUse {
  const controller = new AbortController()
  let ended = false
  let cancel = () => {}
  let fail: (error: ApiError) => void = (error) => sendError(response, error)
  let references = 1
  served.active_requests++
  const release = () => {
    if (--references === 0) served.active_requests--
    served.used_at_ms = performance.now()
  }
  const end = () => {
    if (ended) return
    ended = true
    release()
    response.off('close', onDisconnect)
    served.closing.signal.removeEventListener('abort', onClosing)
    controller.abort()
  }
  const onDisconnect = () => {
    cancel()
    end()
  }
  const onClosing = () => {
    cancel()
    fail(new ApiError('engine_unavailable', 'The model was unloaded.'))
    end()
  }
  response.on('close', onDisconnect)
  served.closing.signal.addEventListener('abort', onClosing)
  return {
    retain() {
      references++
      return release
    },
    end,
    ended: () => ended,
    signal: controller.signal,
    cancelWith(newCancel, onError) {
      cancel = newCancel
      fail = onError
    },
  }
}
