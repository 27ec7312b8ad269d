// One HTTP request to an engine or an upstream, and the reading of its answer.
import http from 'node:http'
import https from 'node:https'

const connectTimeout_ms = 5000
/** A server that closed a kept connection has done so before it read the request: the news of that is here at once. */
const staleNews_ms = 50

/** Where requests go: a unix socket or a host. */
export type Where = Pick<http.RequestOptions, 'socketPath' | 'protocol' | 'hostname' | 'port' | 'agent'>

/** The request was not answered. `taken` says whether the server may have begun to work on it. */
export class NotAnswered extends Error {
  readonly taken: boolean
  constructor(message: string, taken: boolean) {
    super(message)
    this.taken = taken
  }
}

interface Outgoing {
  method: 'GET' | 'POST'
  path: string
  headers?: http.OutgoingHttpHeaders
  payload?: string
}

/**
 * Sends it and resolves with the head of the answer. When `signal` aborts, the connection is closed, also in the middle of the answer.
 * Throws NotAnswered. A connection that was kept from an earlier request and turns out to be closed is replaced once; a
 * server that is then gone may have ended by the request.
 */
export async function send(where: Where, outgoing: Outgoing, signal: AbortSignal): Promise<http.IncomingMessage> {
  try {
    return await sendOnce(where, outgoing, signal)
  } catch (error) {
    if (!(error instanceof StaleConnection)) throw error
    return await sendOnce({ ...where, agent: false }, outgoing, signal).catch((again) => {
      throw again instanceof NotAnswered ? new NotAnswered(again.message, true) : again
    })
  }
}

class StaleConnection extends NotAnswered {}

async function sendOnce(where: Where, outgoing: Outgoing, signal: AbortSignal): Promise<http.IncomingMessage> {
  const { method, path, headers, payload } = outgoing
  const request = (where.protocol === 'https:' ? https : http).request({
    ...where,
    method,
    path,
    headers: payload === undefined ? headers : { 'content-type': 'application/json', 'content-length': Buffer.byteLength(payload), ...headers },
  })
  const answer = answerTo(request, signal)
  if (!signal.aborted) request.end(payload)
  return answer
}

// Apart from the sending: what listens to the answer lives as long as it does, and must not hold what was sent.
function answerTo(request: http.ClientRequest, signal: AbortSignal): Promise<http.IncomingMessage> {
  return new Promise((resolve, reject) => {
    let connected = false
    /** Of a kept connection: when it was given the request, and what it had brought by then. */
    let kept: { at: number; bytes: number } | undefined
    const abort = () => void request.destroy(new Error('given up'))
    signal.addEventListener('abort', abort)
    const settled = () => signal.removeEventListener('abort', abort)
    request.on('socket', (socket) => {
      if (!socket.connecting) {
        connected = true
        kept = { at: performance.now(), bytes: socket.bytesRead }
        return
      }
      const timer = setTimeout(() => request.destroy(new Error(`no connection within ${connectTimeout_ms / 1000} s`)), connectTimeout_ms)
      socket
        .once('close', () => clearTimeout(timer))
        .once('connect', () => {
          clearTimeout(timer)
          connected = true
        })
    })
    request.on('response', (response) => {
      response.once('close', settled)
      resolve(response)
    })
    request.on('error', (error: NodeJS.ErrnoException) => {
      settled()
      const closed = error.code === 'ECONNRESET' || error.code === 'EPIPE'
      const early = kept !== undefined && performance.now() - kept.at < staleNews_ms && request.socket?.bytesRead === kept.bytes
      if (request.reusedSocket && closed && early && !signal.aborted) reject(new StaleConnection(error.message, false))
      else reject(new NotAnswered(error.message, connected && (error.code !== 'EPIPE' || kept !== undefined)))
    })
    if (signal.aborted) abort()
  })
}

/** The body has more bytes than it may. */
export class TooLarge extends Error {}

/** The whole body. Throws NotAnswered where the connection ends before it does, TooLarge where it has more than `max_bytes`. */
export function readAll(response: http.IncomingMessage, max_bytes = Number.POSITIVE_INFINITY): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    const chunks: Buffer[] = []
    let bytes = 0
    response.on('data', (chunk: Buffer) => {
      chunks.push(chunk)
      bytes += chunk.length
      if (bytes <= max_bytes) return
      reject(new TooLarge(`its answer has more than ${Math.round(max_bytes / 1e6)} MB`))
      chunks.length = 0
      response.destroy()
    })
    response.on('end', () => resolve(chunks.length === 1 ? chunks[0]! : Buffer.concat(chunks)))
    response.on('error', (error) => reject(new NotAnswered(error.message, true)))
    response.on('close', () => {
      // It comes after every answer; an error that nobody hears would cost its stack each time.
      if (!response.readableEnded) reject(new NotAnswered('the connection was closed', true))
    })
  })
}

/** The first bytes of a body, which is paused after them; undefined where it is empty. Throws NotAnswered where there are none to come. */
export function readFirst(response: http.IncomingMessage): Promise<Buffer | undefined> {
  return new Promise((resolve, reject) => {
    const clean = () => {
      response.off('data', onData)
      response.off('end', onEnd)
      response.off('error', onError)
      response.off('close', onClose)
    }
    const onData = (chunk: Buffer) => {
      response.pause()
      clean()
      // From here to its reader, a failure finds no listener: it is seen by `errored`.
      response.on('error', () => {})
      resolve(chunk)
    }
    const onEnd = () => {
      clean()
      resolve(undefined)
    }
    const onError = (error: Error) => {
      clean()
      reject(new NotAnswered(error.message, true))
    }
    const onClose = () => onError(new Error('the connection was closed'))
    response.on('data', onData).on('end', onEnd).on('error', onError).on('close', onClose)
  })
}
