// The way of an answer from a replica to the client: whole, or as a stream no faster than the client reads.
import { ApiError, errorBody } from '../../../contract/errors.ts'
import { patience } from '../../../lib/http/client-timeouts.ts'
import type { Served } from '../replicas/pool.ts'
import type { Meter } from './meter.ts'
import { watchStream } from './sse-parser.ts'
import type { Opening } from './sse-response.ts'
import { type TokenCounts, usageIn } from './usage-scanner.ts'

/** What the client said about the usage in its stream: once at the end, or, as vLLM knows it, with each piece. */
export type StreamAsked = { include_usage?: boolean | null | undefined; continuous_usage_stats?: unknown }

const nothingUsed: TokenCounts = { prompt_tokens: 0, completion_tokens: 0, cached_tokens: 0 }

/** What the request waited for before its answer began, as far as this service and the engine know. */
export function serverTiming({ load_ms, queue_ms, headers }: Pick<Served, 'load_ms' | 'queue_ms' | 'headers'>): string {
  const inEngine_ms = Number(headers['x-queue-ms']) || 0
  return `load;dur=${load_ms.toFixed(1)}, queue;dur=${(queue_ms + inEngine_ms).toFixed(1)}`
}

/** Meters a whole answer and returns its bytes with what it used. */
export function takeWhole(served: Served, meter: Meter): { bytes: Buffer; counts: TokenCounts } {
  served.release()
  if (!('whole' in served.content)) throw new Error('a whole answer was asked for and a stream came')
  const bytes = served.content.whole
  const counts = usageIn(bytes) ?? nothingUsed
  meter.end('complete', counts)
  return { bytes, counts }
}

/**
 * Passes an event stream on. One that breaks ends with an error event and without `[DONE]`. Resolves when the client
 * has been given the end, or has left.
 */
export function relayStream(
  served: Served,
  opening: Opening,
  meter: Meter,
  asked: StreamAsked,
  cutting: AbortSignal,
  patience_ms = patience.unread_ms,
): Promise<void> {
  if (!('rest' in served.content)) throw new Error('a stream was asked for and a whole answer came')
  const { first, rest } = served.content
  const watch = watchStream({
    keepUsage: asked.include_usage === true,
    keepRunning: asked.continuous_usage_stats === true,
    rename: served.rename,
    foreign: served.foreign,
    askedRunning: served.askedRunning,
  })
  const out = opening.begin(serverTiming(served))
  /** What it used until now: what the stream says at its end; before that, what was seen of it. */
  const counts = (): TokenCounts =>
    watch.usage() ?? {
      prompt_tokens: wholeNumber(served.headers['x-prompt-tokens']),
      completion_tokens: watch.tokens,
      cached_tokens: wholeNumber(served.headers['x-cached-tokens']),
    }

  return new Promise((resolve) => {
    let over = false
    let waiting: NodeJS.Timeout | undefined
    /** Ends a connection whose client has stopped to read, which would hold its place and its bytes for ever. */
    const waitForReader = () => {
      waiting ??= setTimeout(() => out.destroy(), patience_ms).unref()
    }
    const hasRead = () => {
      clearTimeout(waiting)
      waiting = undefined
    }
    const finish = (how: 'complete' | 'client_left' | 'broken', last?: Buffer | string) => {
      if (over) return
      over = true
      if (how === 'client_left' && served.usageOfLeft && !watch.usage()) {
        // Closing the connection tells the engine; what it had computed by then is what was used.
        rest.destroy()
        meter.endLater(served.usageOfLeft(), counts())
      }
      // Before the last byte: what a client saw complete is in the journal.
      else meter.end(how, counts())
      served.release()
      if (how === 'client_left') rest.destroy()
      else {
        out.end(last)
        if (!out.writableFinished) waitForReader()
        // What is left is nothing, but has to be read for the connection to be used again.
        if (how === 'complete') rest.resume()
        else rest.destroy()
      }
      resolve()
    }
    const give = (chunk: Buffer) => {
      if (over) return
      const bytes = watch.take(chunk)
      if (watch.done) return finish('complete', bytes)
      if (watch.failed) return bytes ? finish('broken', bytes) : broken()
      if (bytes && !out.write(bytes)) {
        rest.pause()
        waitForReader()
      }
    }
    const broken = () => finish('broken', `data: ${JSON.stringify(errorBody(breakOf(cutting), true))}\n\n`)

    out.on('finish', hasRead).on('close', () => {
      hasRead()
      finish('client_left')
    })
    out.on('drain', () => {
      hasRead()
      rest.resume()
    })
    rest.on('data', give).on('end', broken).on('error', broken).on('close', broken)
    rest.pause()
    if (out.destroyed) finish('client_left')
    else {
      if (first) give(first)
      // Its end may have come with its first bytes, before anyone listened.
      if (rest.closed) broken()
      else if (!out.writableNeedDrain) rest.resume()
    }
  })
}

function breakOf(cutting: AbortSignal): ApiError {
  return cutting.aborted
    ? new ApiError(
        'shutting_down',
        'The service stopped in the middle of this answer. Send the request once more in a moment.',
      )
    : new ApiError('engine_failed', 'The engine ended in the middle of this answer. Send the request once more.')
}

const wholeNumber = (text: string | undefined) => {
  const value = Number(text)
  return Number.isSafeInteger(value) && value > 0 ? value : 0
}
