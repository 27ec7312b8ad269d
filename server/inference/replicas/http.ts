// One HTTP request to an engine or an upstream, and the reading of its answer.
import http from 'node:http'
import https from 'node:https'

const connectTimeout_ms = 5000

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
 * Throws NotAnswered. A connection that was kept from an earlier request and turns out to be closed is replaced once.
 */
export async function send(where: Where, outgoing: Outgoing, signal: AbortSignal): Promise<http.IncomingMessage> {
  try {
    return await sendOnce(where, outgoing, signal)
  } catch (error) {
    if (!(error instanceof StaleConnection)) throw error
    return sendOnce({ ...where, agent: false }, outgoing, signal)
  }
}

class StaleConnection extends NotAnswered {}

function sendOnce(where: Where, { method, path, headers, payload }: Outgoing, signal: AbortSignal): Promise<http.IncomingMessage> {
  return new Promise((resolve, reject) => {
    let connected = false
    const request = (where.protocol === 'https:' ? https : http).request({
      ...where,
      method,
      path,
      headers: payload === undefined ? headers : { 'content-type': 'application/json', 'content-length': Buffer.byteLength(payload), ...headers },
    })
    const abort = () => void request.destroy(new Error('given up'))
    signal.addEventListener('abort', abort)
    const settled = () => signal.removeEventListener('abort', abort)
    request.on('socket', (socket) => {
      if (!socket.connecting) {
        connected = true
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
      const stale = request.reusedSocket && (error.code === 'ECONNRESET' || error.code === 'EPIPE') && !signal.aborted
      reject(stale ? new StaleConnection(error.message, false) : new NotAnswered(error.message, connected && error.code !== 'EPIPE'))
    })
    if (signal.aborted) abort()
    else request.end(payload)
  })
}

/** The whole body. Throws NotAnswered where the connection ends before it does. */
export function readAll(response: http.IncomingMessage): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    const chunks: Buffer[] = []
    response.on('data', (chunk: Buffer) => void chunks.push(chunk))
    response.on('end', () => resolve(chunks.length === 1 ? chunks[0]! : Buffer.concat(chunks)))
    response.on('error', (error) => reject(new NotAnswered(error.message, true)))
    response.on('close', () => reject(new NotAnswered('the connection was closed', true)))
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
