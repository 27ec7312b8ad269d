// The two ways a generation is answered: one JSON body, or a stream of Server-Sent Events.
import type { ServerResponse } from 'node:http'
import { type ApiError, errorBody } from '../contract/errors.ts'
import type { FinishReason, Usage } from '../contract/sampling.ts'
import type { GenerationEvents } from './generation.ts'
import { sendError, sendJson } from './http-io.ts'

export type Ending = { finish_reason: FinishReason; usage: Usage }

/** One dialect of the protocol: chat or plain completion. The pieces are JSON text, made without building objects for each token. */
export type Dialect = {
  whole(text: string, ending: Ending): unknown
  /** Chunks sent before the first text. */
  opening(): string[]
  piece(text: string): string
  closing(finish_reason: FinishReason): string
  usage(usage: Usage): string
}

const keepaliveMs = 15_000

export const streamHeaders = {
  'content-type': 'text/event-stream; charset=utf-8',
  'cache-control': 'no-cache, no-transform',
  'x-accel-buffering': 'no',
}

export function answerWhole(response: ServerResponse, dialect: Dialect, done: () => void): GenerationEvents {
  let text = ''
  return {
    onText: (piece) => {
      text += piece
    },
    onEnd: (ending) => {
      sendJson(response, 200, dialect.whole(text, ending))
      done()
    },
    onError: (error) => {
      sendError(response, error)
      done()
    },
  }
}

/**
 * Streams. The status line waits for the first text (or the first keepalive), so that a failure before it is a plain error with
 * its own status, which a gateway may try elsewhere.
 */
export function answerStream(response: ServerResponse, dialect: Dialect, withUsage: boolean, done: () => void): GenerationEvents {
  let opened = false
  const keepalive = setInterval(() => {
    start()
    response.write(': keepalive\n\n')
  }, keepaliveMs)

  const start = () => {
    if (!response.headersSent) response.writeHead(200, streamHeaders)
  }
  const open = () => {
    if (opened) return ''
    opened = true
    clearInterval(keepalive)
    start()
    return dialect.opening().map(frame).join('')
  }
  const close = () => {
    clearInterval(keepalive)
    done()
  }
  // A client that leaves before the first text gets no event any more, and the timer must go with it.
  response.once('close', () => clearInterval(keepalive))

  return {
    onText: (text) => void response.write(open() + frame(dialect.piece(text))),
    onEnd: ({ finish_reason, usage }) => {
      response.end(`${open()}${frame(dialect.closing(finish_reason))}${withUsage ? frame(dialect.usage(usage)) : ''}data: [DONE]\n\n`)
      close()
    },
    onError: (error: ApiError) => {
      if (response.headersSent) response.end(frame(JSON.stringify(errorBody(error, true))))
      else sendError(response, error)
      close()
    },
  }
}

function frame(data: string): string {
  return `data: ${data}\n\n`
}
