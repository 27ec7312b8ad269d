// Relays a replica's response to the client, with backpressure for streams, and meters it.

import type { Writable } from 'node:stream'
import type { FastifyReply } from 'fastify'
import { ApiError, errorBody } from '../../../../contract/errors.ts'
import type { AnswerWarning } from '../../../../contract/inference.ts'
import { clientTimeouts } from '../../../../lib/http/client-timeouts.ts'
import { findUsage, type PoolResponse, type TokenCounts } from '../../serving/index.ts'
import type { Meter } from '../meter.ts'
import { createSseParser } from './sse-parser.ts'

/** The client's `stream_options`. */
export type StreamOptions = { include_usage?: boolean | null | undefined }

const noTokens: TokenCounts = { prompt_tokens: 0, completion_tokens: 0, cached_tokens: 0 }

/**
 * The headers that every answer of a model carries. Server-Timing: time spent waiting for a first replica to start, for
 * the model to load and in queues, here and in the engine. X-Weights: which weights answered.
 */
export function answerHeaders({
  load_ms,
  queue_ms,
  start_ms,
  headers,
  weights,
}: Pick<PoolResponse, 'load_ms' | 'queue_ms' | 'start_ms' | 'headers' | 'weights'>): Record<string, string> {
  const inEngine_ms = Number(headers['x-queue-ms']) || 0
  const start = start_ms ? `start;dur=${start_ms.toFixed(1)}, ` : ''
  const queue = (queue_ms + inEngine_ms).toFixed(1)
  return {
    'server-timing': `${start}load;dur=${load_ms.toFixed(1)}, queue;dur=${queue}`,
    ...(weights && { 'x-weights': weights }),
  }
}

/** Sets X-Warnings: how the request differs from the training of the model. */
export const warningHeader = (reply: FastifyReply) => (warnings: Iterable<AnswerWarning>) =>
  void reply.header('x-warnings', [...warnings].join(', '))

/** Meters a full response and returns its bytes and token counts. */
export function meterFullResponse(response: PoolResponse, meter: Meter): { bytes: Buffer; counts: TokenCounts } {
  response.release()
  if (!('body' in response.content)) throw new Error('expected a full response, got a stream')
  const bytes = response.content.body
  const counts = response.usage?.() ?? findUsage(bytes) ?? noTokens
  meter.end('complete', counts)
  return { bytes, counts }
}

/**
 * Relays an event stream. A stream that breaks ends with an error event and without `[DONE]`. Resolves when the last
 * byte is handed to the socket, or when the client disconnects.
 */
export function relayStream(
  response: PoolResponse,
  sseResponse: { start(headers: Record<string, string>): Writable },
  meter: Meter,
  options: StreamOptions,
  signal: AbortSignal,
  unread_ms = clientTimeouts.unread_ms,
): Promise<void> {
  if (!('stream' in response.content)) throw new Error('expected a stream, got a full response')
  const { firstChunk, stream } = response.content
  const parser = createSseParser(options.include_usage === true)
  // Its first event has come.
  meter.firstToken()
  const out = sseResponse.start(answerHeaders(response))
  /** Tokens used so far: the stream's own usage if it sent one, otherwise counted from its events. */
  const counts = (): TokenCounts =>
    response.usage?.() ??
    parser.usage() ?? {
      prompt_tokens: wholeNumber(response.headers['x-prompt-tokens']),
      completion_tokens: parser.tokens,
      cached_tokens: wholeNumber(response.headers['x-cached-tokens']),
    }

  return new Promise((resolve) => {
    let finished = false
    let unreadTimer: NodeJS.Timeout | undefined
    /** Closes the connection of a client that stops reading, which would keep its slot and memory forever. */
    const startUnreadTimer = () => {
      unreadTimer ??= setTimeout(() => out.destroy(), unread_ms).unref()
    }
    const clearUnreadTimer = () => {
      clearTimeout(unreadTimer)
      unreadTimer = undefined
    }
    const finish = (how: 'complete' | 'client_left' | 'broken', last?: Buffer | string) => {
      if (finished) return
      finished = true
      if (how === 'client_left' && response.abortedUsage && !parser.usage()) {
        // Closing the connection cancels the request in the engine, which then reports the tokens computed so far.
        stream.destroy()
        meter.endAborted(response.abortedUsage(), counts())
      }
      // Meter before the last byte is sent: a response that a client saw complete is always in the journal.
      else meter.end(how, counts())
      response.release()
      if (how === 'client_left') stream.destroy()
      else {
        out.end(last)
        if (!out.writableFinished) startUnreadTimer()
        // Read to the end of the body, so that the connection can be reused.
        if (how === 'complete') stream.resume()
        else stream.destroy()
      }
      resolve()
    }
    const forward = (chunk: Buffer) => {
      if (finished) return
      const bytes = parser.feed(chunk)
      if (parser.done) return finish('complete', bytes)
      if (parser.failed) return bytes ? finish('broken', bytes) : onBroken()
      if (bytes && !out.write(bytes)) {
        stream.pause()
        startUnreadTimer()
      }
    }
    const onBroken = () => finish('broken', `data: ${JSON.stringify(errorBody(interruption(signal), true))}\n\n`)

    out.on('finish', clearUnreadTimer).on('close', () => {
      clearUnreadTimer()
      finish('client_left')
    })
    out.on('drain', () => {
      clearUnreadTimer()
      stream.resume()
    })
    stream.on('data', forward).on('end', onBroken).on('error', onBroken).on('close', onBroken)
    stream.pause()
    if (out.destroyed) finish('client_left')
    else {
      if (firstChunk) forward(firstChunk)
      // The stream may have closed before these listeners were added.
      if (stream.closed) onBroken()
      else if (!out.writableNeedDrain) stream.resume()
    }
  })
}

/** Why a stream broke: the reason of the signal that closed it, or else its server. */
const interruption = ({ reason }: AbortSignal): ApiError =>
  reason instanceof ApiError
    ? reason
    : new ApiError('engine_failed', 'The engine ended in the middle of this answer. Send the request once more.')

const wholeNumber = (text: string | undefined) => {
  const value = Number(text)
  return Number.isSafeInteger(value) && value > 0 ? value : 0
}
